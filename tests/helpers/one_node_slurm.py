"""A SLURM of one node on the loopback, without systemd, in a folder of its own. It needs root and SLURM's programs."""

import os
import platform
import shutil
import signal
import subprocess
import time
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "squeue", "sinfo")
CONFIGURATION = """
ClusterName=bdl
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={port1}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MailProg=/bin/true
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MinJobAge=600
KillWait=60
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=4000 State=UNKNOWN
PartitionName=low Nodes={host} Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=300
PartitionName=high Nodes={host} MaxTime=INFINITE State=UP PriorityTier=9
"""


def why_not() -> str | None:
    """Why this machine cannot start a SLURM of its own; None where it can."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"needs SLURM's programs, and {missing[0]} is not installed (apt-get install slurm-wlm)"
    return None if os.geteuid() == 0 else "only root can start a slurmd"


class Slurm:
    """The daemons. `environment` leads SLURM's commands to them."""

    def __init__(self, folder: Path, port: int):
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self.daemons: list[subprocess.Popen] = []
        for name in ("state", "spool"):
            (folder / name).mkdir()
        host = platform.node().partition(".")[0]
        text = CONFIGURATION.format(folder=folder, host=host, port=port, port1=port + 1)
        (folder / "slurm.conf").write_text(text)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        places = [f"--{kind}-file={folder}/munge.{kind}" for kind in ("key", "pid", "log", "seed")]
        self._start("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *places)
        self._wait_for(lambda: (folder / "munge.socket").exists())
        self._start("slurmctld", "-D")
        self._start("slurmd", "-D")
        self._wait_for(lambda: self.ask("sinfo", "-h", "-p", "low", "-o", "%T") == "idle")

    def _start(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.out").open("w") as out:
            environment = {**os.environ, **self.environment}
            self.daemons.append(subprocess.Popen(command, stdout=out, stderr=out, env=environment))

    def _wait_for(self, ready) -> None:
        deadline = time.monotonic() + 100
        while not ready():
            texts = [path.read_text()[-500:] for path in self.folder.glob("*.out")]
            assert time.monotonic() < deadline and all(d.poll() is None for d in self.daemons), texts
            time.sleep(0.1)

    def ask(self, *command: str) -> str:
        """What one of SLURM's commands prints; empty if it fails."""
        environment = {**os.environ, **self.environment}
        return subprocess.run(command, capture_output=True, text=True, env=environment).stdout.strip()

    def restarts(self, job: str) -> int:
        """How often a job was requeued."""
        words = dict(word.split("=", 1) for word in self.ask("scontrol", "show", "job", job).split() if "=" in word)
        return int(words.get("Restarts", 0))

    def start_now(self, job: str) -> None:
        """SLURM waits two minutes before it starts a requeued job again; this one starts as soon as it can."""
        self.ask("scontrol", "update", f"JobId={job}", "StartTime=now")

    def stop(self) -> None:
        self.ask("scancel", "--state=PENDING", "--user=root")
        self.ask("scancel", "--signal=KILL", "--user=root")
        self.ask("scontrol", "shutdown")
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(timeout=30)
            except subprocess.TimeoutExpired:
                daemon.kill()
