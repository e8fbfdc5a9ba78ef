"""One thread, so that sums are reproducible and two cores can be shared; nothing online."""

import os

import pytest
import torch

os.environ["WANDB_MODE"] = "offline"


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)
