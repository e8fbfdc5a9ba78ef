"""The owner of a folder: the one process that may write to it, named in a lock file; and what dead processes left.

The lock is a hard link, which a file system makes completely or not at all, over NFS too. Readers need no lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, get_type_hints

from bdl.disk.files import WRITING, disk_errors, parse_json, read_file, temporary_file
from bdl.errors import StoreError

ENDED = "ended"  # the start of a zombie
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)  # a store without hard links


def is_alive(pid: int) -> bool:
    """Whether a process of this number runs. A zombie, whose parent has not asked for its exit status, does not run.

    A killed worker stays a zombie where the first process of a container, such as a shell, never reaps orphans.
    """
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        pass
    return start_of(pid) != ENDED


def start_of(pid: int) -> str | None:
    """The boot of the machine and the process's start after it, in clock ticks; ENDED; None if that cannot be found."""
    if not Path("/proc/self/stat").exists():
        ps = subprocess.run(["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True)
        state, _, started = ps.stdout.strip().partition(" ")
        return ENDED if state.startswith("Z") else started.strip() or None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ENDED if fields[0] in "ZX" else f"{boot} {fields[19]}"


@dataclass(frozen=True)
class Owner:
    """A process, named so that no other one can be taken for it."""

    host: str
    namespace: str  # two containers on one host may count their own processes
    pid: int
    started: str  # the boot of the machine, and the process's start in clock ticks after it
    machine: str = ""  # the machine's id, because hosts may share a name
    job: str = ""  # the job of SLURM that it belongs to
    restart: int = 0  # how often SLURM has put that job into its queue again

    @classmethod
    def this_process(cls) -> Self:
        started = start_of(os.getpid()) or ""
        return cls(platform.node(), _namespace(), os.getpid(), started, _machine(), *_job())

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """The process of a file that was read. Raises ValueError where it names none."""
        try:
            owner = cls(**values)
        except TypeError as error:
            raise ValueError("it names no process") from error
        types = get_type_hints(cls)
        if not (all(type(getattr(owner, name)) is types[name] for name in types) and 0 < owner.pid < 2**31):
            raise ValueError("it names no process")
        return owner

    @property
    def is_of_this_host(self) -> bool:
        """Whether its process would be seen from here."""
        here = (self.host, self.namespace) == (platform.node(), _namespace())
        return here and self.machine in ("", _machine())

    def is_dead(self) -> bool:
        """Whether it is certain that the process is gone: no process of this host has its number, or a later one has.

        SLURM starts a job again, perhaps on another host, only after it has ended the processes of the job.
        """
        job, restart = _job()
        if self.job and self.job == job and self.restart < restart:
            return True
        return self.is_of_this_host and (not is_alive(self.pid) or start_of(self.pid) not in (None, self.started))

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@contextlib.contextmanager
def sole_owner(lock: Path) -> Iterator[None]:
    """This process owns the folder of `lock` in the meantime. Raises StoreError if another one does."""
    take(lock)
    try:
        yield
    finally:
        release(lock)


def take(lock: Path) -> None:
    """Own the folder of `lock`. Raises StoreError, which names the owner, if an owner may be alive."""
    with disk_errors(lock):
        lock.parent.mkdir(parents=True, exist_ok=True)
        while not _make(lock):
            owner = owner_of(lock)
            if owner is not None and not owner.is_dead():
                wait = "wait until it has ended, or choose another folder"
                look = f"if it has ended, which cannot be seen from here, remove {lock}"
                remedy = wait if owner.is_of_this_host else look
                raise StoreError(f"{lock.parent} belongs to {owner}, which is writing to it: {remedy}")
            if owner is not None:
                _break(lock)


def release(lock: Path) -> None:
    """Own the folder no more. A lock that a user has removed, and that another process has taken, stays."""
    if owner_of(lock) == Owner.this_process():
        lock.unlink(missing_ok=True)


def owner_of(lock: Path) -> Owner | None:
    """The owner of the folder of `lock`, dead or alive; None without a lock. Raises StoreError for a damaged lock."""
    try:
        return _parse(lock, read_file(lock))
    except FileNotFoundError:
        return None


def sweep_leftovers(folder: Path, every_host: bool = False) -> None:
    """Remove temporary files of this machine's killed writers, and of other machines for the owner of the folder."""
    here = f"{WRITING}{platform.node()}-"
    for path in folder.glob(f"{WRITING}*"):
        pid = path.name.removeprefix(here).partition("-")[0]
        of_this_host = path.name.startswith(here) and pid.isdecimal()
        if not is_alive(int(pid)) if of_this_host else every_host:
            path.unlink(missing_ok=True)


def _parse(lock: Path, content: bytes) -> Owner:
    try:
        return Owner.of(parse_json(content))
    except ValueError as error:
        raise StoreError(f"{lock} is damaged: remove it if no process writes to {lock.parent}") from error


def _make(lock: Path) -> bool:
    """Make the lock; False if there is one."""
    content = json.dumps(asdict(Owner.this_process())).encode()
    with temporary_file(lock.parent, content) as written:
        try:
            os.link(written, lock)
        except FileExistsError:  # over NFS also the answer to a request that was repeated after it had succeeded
            return os.stat(written).st_nlink == 2
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            try:
                with open(lock, "xb") as f:
                    f.write(content)
            except FileExistsError:
                return False
    return True


def _break(lock: Path) -> None:
    """Remove the lock of a dead process of this host.

    Several processes may find it at once, and the first makes a lock of its own at the same place. All of them are on
    this host, so flock lets one at a time look whether the file that it opened is a dead one's, and still there.
    """
    with contextlib.suppress(FileNotFoundError), open(lock, "r+b") as f:
        with contextlib.suppress(OSError):  # a store without flock
            fcntl.flock(f, fcntl.LOCK_EX)
        if _parse(lock, f.read()).is_dead() and os.path.samestat(os.fstat(f.fileno()), os.stat(lock)):
            os.unlink(lock)


def seen_from_here() -> str:
    """A short name for where this process is: the machine and the namespace in which its number means something."""
    return hashlib.sha256("\n".join((platform.node(), _machine(), _namespace())).encode()).hexdigest()[:8]


def _machine() -> str:
    """The number that the machine's system was given when it was installed; empty where it is not known."""
    with contextlib.suppress(OSError):
        return Path("/etc/machine-id").read_text().strip()
    return ""


def _job() -> tuple[str, int]:
    """SLURM's job, empty outside of SLURM, and how often it was put into the queue again."""
    job, restarts = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_RESTART_COUNT", "")
    cluster = os.environ.get("SLURM_CLUSTER_NAME", "")
    return (f"{cluster}/{job}", int(restarts) if restarts.isdecimal() else 0) if job else ("", 0)


def _namespace() -> str:
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""
