"""Lightning: the module, the stack of chains, and the callbacks."""
