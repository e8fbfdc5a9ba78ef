"""One thread, so that sums are reproducible and two cores can be shared; nothing online; files are composed once.

What takes long to import is imported by the fixtures: the process that only distributes the tests needs none of it.
"""

import logging
import os
import runpy
import signal
import sys
from pathlib import Path

os.environ["WANDB_MODE"] = "offline"
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when torch and numpy are imported

import pytest  # noqa: E402

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell leaves it to what it starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

SCRIPTS = Path(__file__).parents[1] / "scripts"

for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.WARNING)


def pytest_configure(config):
    # Where a warning has a class of Lightning's, the process that distributes the tests imports Lightning to show it
    for line in (
        "ignore:.isinstance.treespec, LeafSpec.. is deprecated",
        "ignore:The number of training batches .* is smaller than the logging interval",
        "ignore:Found .* module.s. in eval mode at the start of training",
        "ignore:You defined a .validation_step. but have no .val_dataloader.",
        "ignore:You passed in a .val_dataloader. but have no .validation_step.",
        "ignore:When using .Trainer.accumulate_grad_batches",
    ):
        config.addinivalue_line("filterwarnings", line)


def pytest_addoption(parser):
    parser.addoption(
        "--all-faults", action="store_true", help="every fault, and every sampler on all data, not a choice of them"
    )


@pytest.fixture(scope="session")
def all_faults(request) -> bool:
    return request.config.getoption("--all-faults")


@pytest.fixture(autouse=True)
def as_a_new_process():
    """One thread, and MLPs evaluated by mlp_kernel.c, whatever a run of the test before has set for its process."""
    import torch

    from bdl.engine import mlp_library

    def reset():
        torch.set_num_threads(1)
        mlp_library.let_evaluate(True)

    reset()
    yield
    reset()  # fixtures of the next module run before its tests


@pytest.fixture(scope="session", autouse=True)
def unsynced():
    """Files are not synced in this process: a kill leaves what was written, and no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def composed_once():
    """Hydra reads, lists and merges the same files for most configurations; see `composing`."""
    import composing

    with pytest.MonkeyPatch.context() as patch:
        composing.remember(patch.setattr)
        yield


@pytest.fixture
def simulated():
    """The simulated accelerator "cuda", which Trainers of `toys` use."""
    from simulated import Device

    with Device("cuda") as device:
        yield device


@pytest.fixture(params=["cpu", "simulated"])
def device(request):
    """A device to run on: the CPU, and the simulated accelerator."""
    return request.param if request.param == "cpu" else request.getfixturevalue("simulated").device.type


@pytest.fixture(scope="module")
def unwritten_pictures():
    """The figures of a page are made but not written, which takes two thirds of the time of a small run."""
    from matplotlib.figure import Figure

    savefig = Figure.savefig

    def leave_out(figure, file, *, format=None, **settings):
        if format == "svg":
            file.write(b"<svg/>")
        else:
            savefig(figure, file, format=format, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", leave_out)
        yield


@pytest.fixture(autouse=True)
def no_hydra_left_over():
    from hydra.core.global_hydra import GlobalHydra

    yield
    GlobalHydra.instance().clear()


@pytest.fixture
def script(monkeypatch, capsys):
    """Runs a script as its command line would, in this process: (exit status, stdout, lines on stderr)."""

    def run(name: str, *overrides: str) -> tuple[int, str, list[str]]:
        monkeypatch.setattr(sys, "argv", [str(SCRIPTS / f"{name}.py"), *overrides])
        capsys.readouterr()
        status = 0
        try:
            runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
        except SystemExit as error:
            status = error.code
        out, err = capsys.readouterr()
        return status, out, [line for line in err.splitlines() if line.strip()]

    return run
