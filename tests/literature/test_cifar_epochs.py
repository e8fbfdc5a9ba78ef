"""epochs=short: a common length for the CIFAR tables on a CPU, with the schedules of the full runs compressed."""

from __future__ import annotations

import pytest
from composing import composed
from hydra.utils import instantiate
from omegaconf import DictConfig

from bdl.run.config import register_resolvers, run_name

CELLS = ["cifar10/fixed_msgd", "cifar10/decay_both_awsghmc", "cifar100/fixed_awsghmc"]
EPOCH = 195  # batches of 256

register_resolvers()


def compose(*overrides: str, epochs: int | None = None) -> DictConfig:
    cfg = composed("run_dir=x", *overrides)
    cfg.steps = EPOCH * (epochs or cfg.trainer.max_epochs)
    return cfg


@pytest.mark.parametrize("cell", CELLS)
def test_a_short_run_is_the_cell_in_20_epochs_with_20_samples(cell):
    short, full = compose(f"experiment={cell}", "epochs=short"), compose(f"experiment={cell}")
    assert (short.trainer.max_epochs, full.trainer.max_epochs) == (20, 500)
    keep = instantiate(short.collect.keep)
    kept = [k for k in range(short.steps + 1) if keep(k)]
    assert len(kept) == 20 and kept[0] > 0.6 * short.steps and kept[-1] == short.steps
    for name in ("lr", "temperature"):
        at_short, at_full = (instantiate(cfg.schedule[name]) for cfg in (short, full))
        for part in (0, 0.3, 0.5, 0.7, 1):
            assert at_short(int(part * short.steps)) == pytest.approx(at_full(int(part * full.steps)), rel=1e-3)


def test_a_shorter_length_does_not_change_the_name_of_a_run():
    """`reproduce.py --runs` finds its cell by that name."""
    cfg = composed("experiment=cifar10/fixed_sghmc", "epochs=short")
    assert run_name(cfg.hydra.runtime.choices) == "cifar10/fixed_sghmc"
