"""One thread, so that sums are reproducible and two cores can be shared; nothing online."""

import logging
import os

os.environ["WANDB_MODE"] = "offline"
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when torch and numpy are imported

import pytest  # noqa: E402
import torch  # noqa: E402

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
