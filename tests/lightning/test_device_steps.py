"""Tests of `bdl.samplers.weighting.reweighting`, `bdl.samplers.held`: what a single step costs on an accelerator.

Kernels, waits of the host, and copies are counted on the simulated device.
"""

import functools
import operator

import accelerated
import pytest
import torch
import toys
from repeats import slow_where

import bdl
from bdl.data import TensorBatches
from bdl.models import MLP
from bdl.samplers.held import HeldNumbers

pytestmark = pytest.mark.filterwarnings("ignore::bdl.BdlWarning")
BINS = {"low": 0.0, "high": 1e5, "bins": 20}
C, N = 8, 400  # chains and items of a network for Landsat
# Sampler, its other arguments, the most kernels of a step outside of graphs, and graphs that a step launches
SAMPLERS = {
    "SGD": (bdl.SGD(0.9), {}, 8, 1),
    "SGLD": (bdl.SGLD(), {}, 8, 1),
    "SGHMC": (bdl.SGHMC(0.1), {}, 10, 1),
    "SGNHT": (bdl.SGNHT(0.1), {}, 20, 1),
    "AWSGHMC": (bdl.SGHMC(0.1), {"weighting": bdl.AdaptiveWeight(zeta=10.0, **BINS)}, 15, 2),
    "AWSGHMC, U/T": (
        bdl.SGHMC(0.1),
        {"weighting": bdl.AdaptiveWeight(zeta=10.0, low=0.0, high=1e5, bins=20, units="temperature")},
        15,
        2,
    ),
    "exchange": (bdl.SGHMC(0.1), {"exchange": bdl.Exchange((1.0, 2.0))}, 18, 2),
    "HMC": (bdl.HMC(4), {}, 240, 0),
    "MCLMC": (bdl.MCLMC(), {}, 250, 0),
}


def steps(folder, name: str, first: int = 10, last: int = 30, callbacks=(), **settings) -> accelerated.Window:
    """What happens in the steps after `first`, to `last`, of a run on the simulated device, in epochs of 4 steps."""
    dynamics, arguments, *_ = SAMPLERS[name]
    x, y = toys.tensors(N)[0].repeat(1, 12), torch.arange(N) % 6
    loader = TensorBatches(x, y, N if dynamics.full_batch else N // 4, chains=C)
    build = functools.partial(bdl.Sampler, dynamics=dynamics, num_data=N, lr=1e-3, **(arguments | settings))
    module = bdl.BayesianModule(bdl.ChainStack(MLP((36, 30, 30, 6)), C, seed=1), build)
    window = accelerated.Window(first, last)
    toys.trainer(folder, last + 1, [*callbacks, window], max_epochs=-1).fit(module, loader)
    return window


@pytest.mark.parametrize("name", slow_where(lambda name: name in ("SGD", "SGLD", "HMC", "AWSGHMC, U/T"), SAMPLERS))
def test_no_step_inside_a_block_waits_and_few_kernels_run(name, simulated, tmp_path):
    """Steps 11 to 30 hold one pair of gradients for the batch noise, and three configurational temperatures.

    The window is called before each step, so that no graph holds whole steps: test_whole_steps.py counts those.
    """
    window = steps(tmp_path, name)
    print(f"{name}: {window.kernels:.1f} kernels and {window.launches:.2f} launches a step")
    assert not window.seen.waits, window.seen
    assert 0 < window.kernels <= SAMPLERS[name][2], window.seen
    assert window.launches == SAMPLERS[name][3]


def test_a_wait_is_seen(simulated, tmp_path):
    """Negative control: T on the device is read in every step."""
    window = steps(tmp_path, "SGHMC", temperature=torch.ones(C, device="cuda"))
    assert window.seen.waits.total() >= 20 and any("settings.py" in line for _, line in window.seen.waits)


def test_a_row_of_the_monitor_reads_the_device_once(simulated, tmp_path):
    """T per chain lies on the CPU; the variance of the gradient is known by step 30."""
    window = steps(tmp_path, "AWSGHMC", 25, 30, [bdl.Monitor(30)], temperature=torch.linspace(0.5, 1.0, C))
    assert [op for op, line in window.seen.waits.elements()] == ["_to_copy"], window.seen


def test_a_kept_sample_is_one_copy_of_the_parameters(simulated, tmp_path):
    """Besides it, a flag of bad steps and one of numbers that are not finite are read."""
    keep = bdl.CollectSamples(bdl.schedules.EveryStep(0, 30), tmp_path, full_energy=False)
    window = steps(tmp_path, "SGHMC", 25, 30, [keep])
    copies = [line for (op, line), n in window.seen.waits.items() for _ in range(n) if op == "_to_copy"]
    assert len(copies) == 1 and window.seen.waits.total() <= 3, window.seen


def test_held_numbers_are_copied_where_they_differ(simulated):
    """A number, and one for each chain on the host, are written when they are others than before."""
    held = HeldNumbers(torch.zeros(C, device="cuda"))
    each = torch.arange(C, dtype=torch.float32)
    with simulated.counted() as seen:
        for lr, t in ((0.1, each), (0.1, each.clone()), (0.2, each + 1), (0.2, 3.0)):
            places = held.put("lr", lr), held.put("temperature", t, each=True)
            assert places[0].item() == pytest.approx(lr) and places[1].tolist() == torch.as_tensor(t).expand(C).tolist()
            assert all(map(operator.is_, places, (held.put("lr", lr), held.put("temperature", t, each=True))))
    writes = [op for op, line in seen.kernels.elements() if "held.py" in line]
    assert sorted(writes) == ["copy_", "copy_", "fill_", "fill_", "fill_"]
