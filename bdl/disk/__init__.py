"""How bdl writes to a disk: whole files, the manifest that vouches for them, and the one process that may write."""
