"""One thread, so that sums are reproducible and two cores can be shared; nothing online; a YAML file is parsed once."""

import logging
import os
import pickle
import runpy
import sys
from pathlib import Path

os.environ["WANDB_MODE"] = "offline"
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when torch and numpy are imported

import pytest  # noqa: E402
import torch  # noqa: E402
import yaml  # noqa: E402
from hydra.core.global_hydra import GlobalHydra  # noqa: E402

SCRIPTS = Path(__file__).parents[1] / "scripts"

for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.WARNING)


def pytest_configure(config):
    for line in (
        "ignore:.isinstance.treespec, LeafSpec.. is deprecated",
        "ignore:The number of training batches .* is smaller than the logging interval",
        "ignore:Found .* module.s. in eval mode at the start of training",
    ):
        config.addinivalue_line("filterwarnings", line)


def pytest_addoption(parser):
    parser.addoption("--all-faults", action="store_true", help="with -m faults: every fault, not a choice of them")


@pytest.fixture(scope="session")
def all_faults(request) -> bool:
    return request.config.getoption("--all-faults")


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def parsed_once():
    """Hydra parses some thirty files for a configuration, which takes half of its time. They stay the same."""
    parse, parsed = yaml.load, {}

    def load(stream, Loader):
        text = stream if isinstance(stream, str | bytes) else stream.read()
        key = (text, Loader.__qualname__)
        if key not in parsed:
            parsed[key] = pickle.dumps(parse(text, Loader))
        return pickle.loads(parsed[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "load", load)
        yield


@pytest.fixture(autouse=True)
def no_hydra_left_over():
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
