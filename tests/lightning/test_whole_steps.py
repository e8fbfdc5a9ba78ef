"""Tests of `bdl.samplers.whole_steps`, `bdl.engine.recorded`, `bdl.samplers.weighting.recorded`: walks on a GPU.

The simulated device counts kernels and waits. Its products of matrices depend on where their memory begins, so states
are compared within rounding, and random streams to the bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import toys
from repeats import slow_where
from simulated import Counts, CUDAGraph, Device
from torch import Tensor, nn

import bdl
from bdl.data import TensorBatches
from bdl.engine.graphs import record_on_cuda
from bdl.lightning.blocks import StepBlocks
from bdl.models import MLP
from bdl.samplers.whole_steps import GradientSteps
from bdl.schedules import Cosine
from bdl.seeding import generator

pytestmark = pytest.mark.filterwarnings("ignore::bdl.BdlWarning")
C, STEPS = 3, 101
RANGE = {"low": 0.0, "high": 120.0, "bins": 10}


@dataclass(frozen=True)
class Case:
    """A run, and the most kernels and launches of a step of its walks."""

    sampler: dict[str, Any] = field(default_factory=dict)
    kernels: float = 0.9
    net: Any = None
    batch: int = 1
    lr: Any = Cosine(0.1, STEPS, final=0.01)
    temperature: Any = Cosine(2.0, STEPS, final=0.5)


WEIGHTED = {"temperature": None, "kernels": 1.4}  # with a look at the bins, at the hundredth step
CASES = {
    "sghmc": Case(),
    "sgnht": Case({"dynamics": bdl.SGNHT(0.5, rate=0.01)}),
    "awsghmc": Case({"weighting": bdl.AdaptiveWeight(zeta=2.0, **RANGE)}, **WEIGHTED),
    "contour, smoothed, shared": Case({"weighting": bdl.Contour(**RANGE, shared=True, energy="ema")}, **WEIGHTED),
    "mclmc": Case({"dynamics": bdl.MCLMC(adapt_steps=20, adjusted=True)}, 0.7, batch=toys.N, lr=lambda step: 0.01),
    "sgd": Case({"dynamics": bdl.SGD(0.9)}, temperature=lambda step: 0.0),
    "baoab": Case({"dynamics": bdl.BAOAB(0.1)}),
    "awsgld": Case({"dynamics": bdl.SGLD(), "weighting": bdl.AdaptiveWeight(zeta=2.0, **RANGE)}, **WEIGHTED),
    "awsgnht": Case({"dynamics": bdl.SGNHT(0.5, rate=0.01), "weighting": bdl.Contour(**RANGE)}, **WEIGHTED),
    "T = 0 half of the time": Case(kernels=3, temperature=lambda step: float(step // 10 % 2)),
    "clip, Student-t": Case({"clip": bdl.ClipNorm(0.5), "prior": bdl.StudentT(3.0, "he")}),
    "a factor of lr": Case({"blocks": {"0.*": bdl.Block(lr_factor=0.5)}}),
    "other layers": Case(net=nn.Sequential(nn.Linear(toys.D, 5), nn.LayerNorm(5), nn.Linear(5, toys.K))),
}
SAME_WAY = ("clip, Student-t", "a factor of lr", "sgd", "baoab", "awsgld", "awsgnht")


class Walks:
    """Counts what the walks of a run do after `warm` steps, by which time their graphs are recorded."""

    def __init__(self, patch: pytest.MonkeyPatch, warm: int = 61):
        self.steps, self.seen, self.all = 0, Counts(), 0
        walk = StepBlocks._walk

        def counted(blocks: StepBlocks, most: int) -> int:
            counts = blocks.sampler.steps >= warm
            with Device.present().counted() as seen:
                made = walk(blocks, most)
            self.all += made
            if counts:
                self.steps += made
                self.seen.kernels += seen.kernels
                self.seen.waits += seen.waits
                self.seen.launches += seen.launches
            return made

        patch.setattr(StepBlocks, "_walk", counted)

    @property
    def each(self) -> float:
        """Kernels and graphs that the host launches a step."""
        return (self.seen.kernels.total() + self.seen.launches) / self.steps


class Sees(bdl.callbacks.StepCallback):
    """Must see some steps, after which walks end."""

    ends_block = False

    def __init__(self, *steps: int):
        self.steps = steps

    def must_see(self, step: int) -> bool:
        return step in self.steps

    def on_train_batch_end(self, *_: Any) -> None:
        pass


def fit(folder, case: Case, *callbacks: Any, steps: int = STEPS, resume: Any = None, **options: Any):
    """The module after a run on the simulated device; 40 steps make an epoch."""
    torch.manual_seed(7 if resume is None else 8)
    net = MLP((toys.D, 5, toys.K)) if case.net is None else case.net
    stack = bdl.ChainStack(net, C, seed=1)
    module = toys.module(stack, C, **(case.sampler | options.pop("sampler", {})))
    module.compiled = options.pop("compile", "auto")
    schedule = bdl.Schedule(lr=case.lr, temperature=case.temperature)
    save = bdl.SaveLast(folder / "checkpoints", every=1000)
    trainer = toys.trainer(folder, steps, [schedule, save, *callbacks], max_epochs=-1, **options)
    loader = options.pop("loader", None) or TensorBatches(*toys.tensors(), case.batch, chains=C)
    trainer.fit(module, loader, ckpt_path=resume, weights_only=True)
    return module


def left(module) -> dict[str, Tensor]:
    """What the steps leave, on the CPU."""
    sampler, h = module.sampler, module.sampler.reweighting.histogram
    s, noise = sampler.chain.state, sampler.batch_noise
    made = {k: v for k, v in vars(s).items() if isinstance(v, Tensor)}
    made |= {"Var(g)": noise.mean, "previous": noise.previous}
    if h is not None:
        made |= {k: getattr(h, k) for k in ("psi", "log_psi", "visits", "window", "clock", "pace", "left")}
        made |= {"multiplier": sampler.multiplier, "log weight": sampler.log_weight, "energy": sampler.energy}
    return {k: v.detach().cpu() for k, v in made.items() if v is not None}


def assert_same(one, other) -> None:
    a, b = left(one), left(other)
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=2e-4, rtol=2e-4, msg=lambda m, name=name: f"{name}: {m}")
    assert torch.equal(one.sampler.chain.generator.get_state(), other.sampler.chain.generator.get_state())
    assert one.sampler.steps == other.sampler.steps


@pytest.mark.parametrize("name", slow_where(SAME_WAY.__contains__, CASES))
def test_walks_leave_what_single_steps_leave_in_few_launches(tmp_path, simulated, monkeypatch, name):
    """Most steps are made in walks, which never wait for the device."""
    walks = Walks(monkeypatch)
    made = fit(tmp_path / "a", CASES[name], Sees(24, 61, 80))
    print(f"{name}: {walks.each:.2f} kernels and graphs a step in walks, which made {walks.all} of {STEPS}")
    assert walks.all > 0.7 * STEPS and walks.steps > 20, walks.seen
    assert all("partition.py" in line or "histogram.py" in line for _, line in walks.seen.waits), walks.seen
    assert walks.each <= CASES[name].kernels, walks.seen
    assert_same(made, fit(tmp_path / "b", CASES[name], toys.EveryBatch()))


@pytest.mark.parametrize("name", slow_where(lambda name: name != "sghmc", ("sghmc", "sgnht", "awsghmc", "mclmc")))
def test_a_run_that_stops_in_a_walk_resumes_its_stream(tmp_path, simulated, name):
    """It goes on where another run walks, from a file; the graphs of the resumed run are new."""
    whole = fit(tmp_path / "whole", CASES[name])
    first = fit(tmp_path / "parts", CASES[name], toys.Stops(47))
    assert 40 < first.sampler.steps < STEPS
    last = tmp_path / "parts" / "checkpoints" / "last.ckpt"
    assert_same(whole, fit(tmp_path / "parts", CASES[name], resume=last))


LR = 1e-9  # at which steps are noise, because no gradient moves θ as far


class Increments(bdl.callbacks.StepCallback):
    """Remembers θ (C, d) at every 20th step from 40 on."""

    ends_block = False

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def must_see(self, step: int) -> bool:
        return step >= 40 and step % 20 == 0

    def on_train_batch_end(self, trainer, pl_module, *_: Any) -> None:
        if self.must_see(pl_module.sampler.steps):
            self.seen.append(pl_module.sampler.chain.theta.cpu())


def relation(folder, runs: Sequence[dict[str, Any]]) -> float:
    """The largest correlation of the noise of 20 steps of two chains, runs or times, in standard errors of none.

    The noise has to have the variance 20 * 2 lr T / N.
    """
    increments = []
    for k, settings in enumerate(runs):
        looks = Increments()
        case = Case({"dynamics": bdl.SGLD(), "prior": bdl.Uniform(), **settings}, lr=lambda step: LR, temperature=None)
        fit(folder / str(k), case, looks)
        increments.append(torch.stack(looks.seen).diff(dim=0).flatten(0, 1))
    noise = torch.cat(increments).double()  # (runs x times x C, d)
    assert noise.std() / (20 * 2 * LR / toys.N) ** 0.5 == pytest.approx(1, abs=4 / (2 * noise.numel()) ** 0.5)
    return float(torch.corrcoef(noise).fill_diagonal_(0).abs().max() * noise.shape[1] ** 0.5)


def test_chains_stacks_seeds_and_steps_have_different_noise(tmp_path, simulated):
    assert relation(tmp_path, [{}, {"stack": 1}, {"seed": 1}]) < 5


def test_a_stream_that_graphs_repeat_is_seen(tmp_path, simulated, monkeypatch):
    """Graphs that leave the stream where it was draw the same numbers in every launch."""
    replay = CUDAGraph.replay

    def repeated(graph: CUDAGraph) -> None:
        states = [(stream, stream.get_state()) for stream, _ in graph.tape.streams]
        replay(graph)
        for stream, state in states:
            stream.set_state(state)

    monkeypatch.setattr(CUDAGraph, "replay", repeated)
    with pytest.raises(AssertionError):
        assert relation(tmp_path, [{}]) < 5
    with pytest.raises(AssertionError):
        case = CASES["sghmc"]
        assert_same(fit(tmp_path / "a", case), fit(tmp_path / "b", case, toys.EveryBatch()))


def test_launches_of_a_graph_draw_what_kernels_draw_outside_of_it(simulated):
    """A recording leaves the stream where it was. A stream that is not registered cannot be recorded."""
    place, stream, other = torch.empty(5, device="cuda"), *(generator("cuda", "noise", 1) for _ in range(2))
    launch, _ = record_on_cuda(lambda: place.normal_(generator=stream), [stream])
    for _ in range(3):
        launch()
        assert torch.equal(place.cpu(), torch.empty(5, device="cuda").normal_(generator=other).cpu())
    assert torch.equal(stream.get_state(), other.get_state())
    with pytest.raises(bdl.ConfigError, match="not registered"):
        record_on_cuda(lambda: place.normal_(generator=other), [stream])


class Reads(bdl.SGLD):
    """A linear dynamics that reads a number of the device in every step."""

    def step(self, s, g, lr, tau, z, extra=None):
        float(g.sum())
        return super().step(s, g, lr, tau, z, extra)


def test_a_wait_inside_of_a_graph_is_named(tmp_path, simulated):
    """Under compile=true it ends the run, else the kernels run one by one."""
    with pytest.raises(bdl.ConfigError, match="cannot be recorded as a CUDA graph"):
        fit(tmp_path / "a", Case({"dynamics": Reads()}), compile=True)
    with pytest.warns(bdl.BdlWarning, match="kernels run one by one"):
        waits = fit(tmp_path / "b", Case({"dynamics": Reads()}), steps=20)
    assert_same(waits, fit(tmp_path / "c", Case({"dynamics": bdl.SGLD()}), steps=20))


def test_a_kernel_outside_of_the_graph_is_counted(tmp_path, simulated, monkeypatch):
    make, walks, case = GradientSteps.make, Walks(monkeypatch), CASES["sghmc"]

    def more(whole: GradientSteps, batches: Any, settings: Any) -> None:
        for _ in settings:
            whole.chain.theta.add_(0)
        make(whole, batches, settings)

    monkeypatch.setattr(GradientSteps, "make", more)
    fit(tmp_path, case, Sees(24, 61, 80))
    assert walks.each > case.kernels


@pytest.mark.slow
def test_walks_begin_once_a_pilot_has_found_the_bins(tmp_path, simulated, monkeypatch):
    walks, steps = Walks(monkeypatch), 240
    case = Case({"weighting": bdl.AdaptiveWeight(pilot=100, bins=10)}, temperature=None)
    made = fit(tmp_path / "a", case, steps=steps)
    assert made.sampler.reweighting.histogram.updates > 100 and 100 < walks.all < steps - 100
    assert_same(made, fit(tmp_path / "b", case, toys.EveryBatch(), steps=steps))


@pytest.mark.parametrize(
    "name",
    slow_where(
        lambda name: name not in ("sghmc", "sgnht", "awsghmc", "mclmc"),
        ("sghmc", "sgnht", "awsghmc", "mclmc", "sgd", "baoab", "awsgld", "awsgnht"),
    ),
)
def test_a_hundred_steps_have_half_as_many_launches_and_two_waits(tmp_path, simulated, monkeypatch, name):
    """The host launches at most one kernel or graph in two steps."""
    walks, steady = Walks(monkeypatch, 100), {} if name == "sgd" else {"temperature": None}
    fit(tmp_path, replace(CASES[name], lr=lambda step: 0.01, **steady), Sees(100), steps=200)
    print(f"{name}: {walks.each:.2f} kernels and graphs a step, {walks.seen.waits.total()} waits in {walks.steps}")
    assert walks.steps > 95 and walks.each <= 0.6 and walks.seen.waits.total() <= 2, walks.seen
