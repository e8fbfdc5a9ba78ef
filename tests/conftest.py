"""One thread, so that sums are reproducible and two cores can be shared; nothing online."""

import os

os.environ["WANDB_MODE"] = "offline"
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when torch and numpy are imported

import pytest  # noqa: E402
import torch  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)
