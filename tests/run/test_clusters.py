"""Sweeps on clusters: what a job asks for, and a job that its scheduler stops goes on where it was; files of docs."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import one_node_slurm
import pytest
from composing import ROOT, SCRIPTS, composed
from forked import Forked
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from running import finish, samples, start

from bdl.errors import Stopped
from bdl.lightning.trainer import assemble
from bdl.run import command, launch
from bdl.run.launch import given_back

LONG = (
    "logger=none", "chains=2", "stacks=2", "model.sizes=[36,6]", "collect.keep.burn_in=200", "collect.keep.every=400",
    "checkpoint_every=200", "train_items=50",
)  # fmt: skip


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def on_path(monkeypatch, folder: Path) -> None:
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(("trainer=debug",), marks=pytest.mark.slow),
        ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=1"),
    ],
)
def test_an_srun_on_the_path_is_not_spoken_of(tmp_path, monkeypatch, kind):
    program(tmp_path / "bin", "srun", "exit 1")
    on_path(monkeypatch, tmp_path / "bin")
    steps = ("trainer.max_steps=8", "collect.keep.burn_in=2", "collect.keep.every=2")
    _, err = finish(start(f"hydra.run.dir={tmp_path / 'run'}", *LONG, "stacks=1", *kind, *steps))
    assert err == ""


def test_nor_in_python(tmp_path, monkeypatch):
    program(tmp_path / "bin", "srun", "exit 1")
    on_path(monkeypatch, tmp_path / "bin")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert assemble([], tmp_path, accelerator="cpu", devices=1).max_epochs is None


def launcher(name: str, *overrides: str):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="needs the extra [cluster]")
    command.register_sweeps()
    return composed(f"hydra/launcher={name}", *overrides).hydra.launcher


def test_a_slurm_job_asks_for_what_its_run_uses():
    asked = launcher("submitit_slurm")
    assert (asked.nodes, asked.tasks_per_node, asked.cpus_per_task, asked.gpus_per_node) == (1, 1, 2, None)
    assert asked.additional_parameters.requeue is True and asked.max_num_timeout > 0
    machines = ("trainer=chains", "trainer.num_nodes=2", "trainer.devices=4", "trainer.concurrent=3")
    asked = launcher("submitit_slurm", *machines, "trainer.accelerator=gpu", "threads=5")
    assert (asked.nodes, asked.tasks_per_node, asked.cpus_per_task, asked.gpus_per_node) == (2, 12, 5, 4)
    asked = launcher("submitit_slurm", "stacks=8", "processes=3", "hydra.launcher.cpus_per_task=7")
    assert asked.cpus_per_task == 7 and asked.tasks_per_node == 1
    assert launcher("submitit_slurm", "stacks=8", "processes=3").cpus_per_task == 3


def test_a_local_job_starts_its_processes_itself():
    asked = launcher("submitit_local", "trainer=chains", "trainer.devices=4", "trainer.accelerator=gpu")
    assert asked.tasks_per_node == 1 and asked.gpus_per_node == 4


@pytest.fixture
def requeued(monkeypatch):
    """What a scheduler's library does at its warning: here it notes the signal."""
    noted = []
    previous = signal.signal(signal.SIGUSR2, lambda signum, _: noted.append(signum))
    yield noted
    signal.signal(signal.SIGUSR2, previous)


@pytest.mark.parametrize(
    ("signum", "preempt_time", "again"),
    [
        (signal.SIGUSR2, "None", True),
        (signal.SIGTERM, "2026-01-01T00:00:00", True),
        (signal.SIGTERM, "None", False),  # scancel
        (signal.SIGINT, "None", False),
    ],
)
def test_a_stopped_job_is_requeued_unless_its_user_stopped_it(
    tmp_path, monkeypatch, requeued, signum, preempt_time, again
):
    program(tmp_path, "scontrol", f'[ "$*" = "show job 17" ] && echo "JobId=17 PreemptTime={preempt_time} X=1"')
    on_path(monkeypatch, tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    with pytest.raises(Stopped), given_back():
        raise Stopped(signum, "stopped")
    assert requeued == ([signal.SIGUSR2] if again else [])


def test_without_a_scheduler_nothing_is_asked(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert not launch.preempted() and signal.SIGUSR2 not in launch.ending_signals()


ARRAY = ROOT / "docs" / "cluster" / "sweep.sbatch"
BDL = """printf "%s\\n" "$@" > given; trap "exit 143" TERM; echo > begun
for i in $(seq $STEPS); do sleep 0.05; done; exit $END"""


@pytest.mark.parametrize(
    ("signum", "state", "end", "status", "again"),
    [
        (signal.SIGUSR1, "RUNNING", 0, 143, True),
        (signal.SIGTERM, "RUNNING", 0, 143, True),  # preempted
        (signal.SIGTERM, "CANCELLED", 0, 143, False),
        (None, "RUNNING", 0, 0, False),
        (None, "RUNNING", 1, 1, False),
    ],
)
def test_a_job_of_the_array_is_requeued_once_its_run_is_saved(tmp_path, signum, state, end, status, again):
    """By bash, in place of SLURM. The options of its line arrive as they are written, quotes and brackets too."""
    (tmp_path / "jobs.txt").write_text("seed=0\nseed=1 model.sizes=[3,6] 'data.drop=[a b]'\n")
    (tmp_path / "model.sizes=3").touch()
    program(tmp_path / "bin", "bdl", BDL)
    program(tmp_path / "bin", "scontrol", f'echo "$*" >> asked; echo "JobState={state}"')
    os.chmod(tmp_path / "bin", 0o755)
    environment = {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", "SLURM_ARRAY_TASK_ID": "2",
        "SLURM_JOB_ID": "17", "STEPS": "400" if signum else "1", "END": str(end),
    }  # fmt: skip
    job = subprocess.Popen(["bash", ARRAY], cwd=tmp_path, env=environment)
    while not (tmp_path / "begun").exists():
        assert job.poll() is None
        time.sleep(0.01)
    if signum is not None:
        job.send_signal(signum)
    assert job.wait(timeout=60) == status
    assert (tmp_path / "given").read_text().splitlines() == ["train", "seed=1", "model.sizes=[3,6]", "data.drop=[a b]"]
    asked = (tmp_path / "asked").read_text().splitlines() if (tmp_path / "asked").exists() else []
    assert ("requeue 17" in asked) == again


def test_the_container_installs_by_pip_and_runs_as_no_root():
    lines = [
        line.split(maxsplit=1) for line in (ROOT / "docs" / "cluster" / "Dockerfile").read_text().splitlines() if line
    ]
    steps = [(word, rest) for word, rest in lines if word.isupper()]
    assert steps[0][0] == "FROM" and ("ENTRYPOINT", '["bdl"]') == steps[-1]
    installs = next(i for i, (word, rest) in enumerate(steps) if word == "RUN" and rest.startswith("pip install"))
    user = next(i for i, (word, _) in enumerate(steps) if word == "USER")
    assert installs < user and steps[user][1] not in ("root", "0")
    assert not any(word in ("RUN", "COPY") for word, _ in steps[user:])


def descendants(pid: int) -> list[int]:
    children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(pid for child in children for pid in descendants(child))]


def test_a_signal_to_all_processes_at_once_is_one_signal(tmp_path):
    """SLURM signals every process of a job, and the first one forwards what it gets: the others hear it twice."""
    process = start(f"hydra.run.dir={tmp_path}", *LONG, "processes=2", "trainer.max_steps=10000000")
    while not all((tmp_path / "samples" / f"index-{stack}.jsonl").exists() for stack in (0, 1)):
        assert process.poll() is None, process.communicate(timeout=10)
        time.sleep(0.01)
    for pid in [process.pid, *descendants(process.pid)]:
        os.kill(pid, signal.SIGTERM)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 143, (out, err)
    assert len(err.splitlines()) == 1 and err.startswith("bdl: stopped by SIGTERM; the same command resumes"), err


@pytest.mark.slow  # new interpreters
def test_a_local_job_is_started_again_after_a_warning(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="needs the extra [cluster]")
    options = (*LONG, "processes=2", "trainer.max_steps=24000")
    sweep = start("-m", "hydra/launcher=submitit_local", f"hydra.sweep.dir={tmp_path / 'sweep'}", "seed=0", *options)
    folder = wait_for_sample(sweep, tmp_path / "sweep")
    os.kill(json.loads((folder / "owner.json").read_text())["pid"], signal.SIGUSR2)
    finish(sweep)
    logs = "".join(path.read_text() for path in (tmp_path / "sweep" / ".submitit").rglob("*_log.out"))
    assert "resuming from" in logs
    finish(start(f"hydra.run.dir={tmp_path / 'whole'}", "seed=0", *options))
    assert samples(folder) == samples(tmp_path / "whole")
    assert (folder / "metrics.json").read_bytes() == (tmp_path / "whole" / "metrics.json").read_bytes()


def wait_for_sample(sweep: Forked, folder: Path, seed: int = 0) -> Path:
    """The run directory of a seed, once both stacks have kept a sample."""
    while not (found := list(folder.glob(f"*/{seed}-*/samples/index-1.jsonl"))):
        assert sweep.poll() is None, sweep.communicate(timeout=10)
        time.sleep(0.05)
    return found[0].parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "chains"])
def test_two_nodes_under_torchrun_sample_what_two_processes_do(tmp_path, kind):
    """Two agents on this machine, which meet over the loopback."""
    steps = ("trainer.max_steps=300", "collect.keep.every=20", "collect.keep.burn_in=40")
    options = (f"trainer={kind}", "trainer.accelerator=cpu", "sampler=sghmc", *LONG, "stacks=1", *steps)
    port = find_free_network_port()
    meet = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1")
    script = (str(SCRIPTS / "train.py"), f"hydra.run.dir={tmp_path / 'nodes'}")
    nodes = ("trainer.devices=1", "trainer.num_nodes=2")
    agent = (sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", *meet)
    agents = [
        subprocess.Popen([*agent, *script, *options, *nodes], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ends = [(*process.communicate(timeout=500), process.returncode) for process in agents]
    assert [status for _, _, status in ends] == [0, 0], ends
    assert sum(out.count("report: ") for out, _, _ in ends) == 1
    finish(start(f"hydra.run.dir={tmp_path / 'one'}", *options, "trainer.devices=2"))
    kept = samples(tmp_path / "nodes")
    assert len(kept) > 12 and kept == samples(tmp_path / "one")
    assert (tmp_path / "nodes" / "metrics.json").read_bytes() == (tmp_path / "one" / "metrics.json").read_bytes()


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    if (reason := one_node_slurm.why_not()) is not None:
        pytest.skip(reason)
    (tmp_path / "slurm").mkdir()
    slurm = one_node_slurm.Slurm(tmp_path / "slurm", 16917)
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    yield slurm
    slurm.stop()


@pytest.mark.slow
def test_array_of_jobs_survives_a_warning_requeue_and_preemption(tmp_path, slurm):
    """Each job is stopped in another way and started again once, and its samples are those of a run of its own."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="needs the extra [cluster]")
    options = (*LONG, "processes=2", "trainer.max_steps=20000")
    place = f"hydra.sweep.dir={tmp_path / 'sweep'}"
    queue = ("hydra/launcher=submitit_slurm", "hydra.launcher.partition=low", "hydra.launcher.mem_gb=1")
    sweep = start("-m", *queue, place, "seed=0,1,2", *options)
    runs = [wait_for_sample(sweep, tmp_path / "sweep", seed) for seed in range(3)]
    array = slurm.ask("squeue", "-h", "-r", "-o", "%F").split()[0]
    jobs = [f"{array}_{task}" for task in range(3)]
    slurm.ask("scancel", "--signal=USR2", jobs[0])
    slurm.ask("scontrol", "requeue", jobs[1])
    slurm.ask("sbatch", "-p", "high", "-n", "8", "-o", "/dev/null", "--wrap", "sleep 1")
    while sweep.poll() is None:
        for job in jobs:
            slurm.start_now(job)
        time.sleep(1)
    _, err = sweep.communicate(timeout=10)
    assert sweep.returncode == 0, err
    assert [slurm.restarts(job) for job in jobs] == [1, 1, 1]
    for seed, run in enumerate(runs):
        whole = start(f"hydra.run.dir={tmp_path / str(seed)}", f"seed={seed}", *options)
        _, err = whole.communicate(timeout=900)
        assert whole.returncode == 0, err
        assert samples(run) == samples(tmp_path / str(seed))
        assert (run / "metrics.json").read_bytes() == (tmp_path / str(seed) / "metrics.json").read_bytes()


@pytest.mark.slow
def test_the_array_of_docs_goes_on_after_a_warning(tmp_path, slurm, monkeypatch):
    """A job that SLURM warns is requeued by the file itself, and its samples are those of a run that nobody stopped."""
    options = (*LONG, "processes=2", "trainer.max_steps=20000")
    program(tmp_path / "bin", "bdl", f'exec {sys.executable} -m bdl "$@"')
    on_path(monkeypatch, tmp_path / "bin")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    lines = [" ".join([f"hydra.run.dir={seed}", f"seed={seed}", *options]) for seed in (0, 1)]
    (tmp_path / "jobs.txt").write_text("\n".join(lines) + "\n")
    array = slurm.ask("sbatch", "--parsable", "--array=1-2", "--mem=500", "-p", "low", str(ARRAY))
    while not all((tmp_path / str(seed) / "samples" / "index-1.jsonl").exists() for seed in (0, 1)):
        time.sleep(0.1)
    slurm.ask("scancel", "--batch", "--signal=USR1", f"{array}_1")
    while not all((tmp_path / str(seed) / "metrics.json").exists() for seed in (0, 1)):
        slurm.start_now(f"{array}_1")
        time.sleep(0.5)
    assert [slurm.restarts(f"{array}_{task}") for task in (1, 2)] == [1, 0]
    finish(start(f"hydra.run.dir={tmp_path / 'whole'}", "seed=0", *options))
    assert samples(tmp_path / "0") == samples(tmp_path / "whole")
