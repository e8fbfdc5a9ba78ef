"""epochs=short: a common length for the CIFAR tables on a CPU, with the schedules of the full runs compressed."""

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


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
@pytest.mark.parametrize("schedule", ["fixed", "decay", "decay_both"])
def test_the_cells_at_t_1_differ_in_temperature_alone(data, schedule):
    for method in ("sghmc", "awsghmc"):
        hot, cold = (compose(f"experiment={data}/{name}_{method}") for name in (f"{schedule}_hot", schedule))
        assert hot.sampler.temperature == 1
        if method == "awsghmc":
            assert hot.sampler.weighting.zeta == cold.sampler.weighting.zeta * cold.sampler.temperature
        lr, temperature = (instantiate(hot.schedule[name]) for name in ("lr", "temperature"))
        steps = [hot.steps * k // 10 for k in range(11)]
        if (data, schedule, method) != ("cifar10", "fixed", "awsghmc"):  # whose lr is for the heat of the batches
            assert [lr(k) for k in steps] == [instantiate(cold.schedule.lr)(k) for k in steps]
        # The heat of the batches goes with lr, so its share of T never rises
        assert all(lr(k) / temperature(k) <= 0.1 * (1 + 1e-9) for k in steps)
