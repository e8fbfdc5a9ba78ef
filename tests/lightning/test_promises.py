"""Tests of `bdl.lightning.callbacks.promises`.

A run heats and rests as tuning promised, or a line says that it does not; a resumed run decides the same.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from lightning.pytorch.callbacks import Callback
from repeats import slow_where

import bdl
from bdl.schedules import EveryStep
from bdl.tune.heat import CoolDirections

STEPS, BURN_IN = 700, 100
KEEP = EveryStep(BURN_IN, 60)  # 10 samples


class Halt(bdl.callbacks.StepCallback):
    """Asks the run to stop after one step, as a signal would."""

    def __init__(self, at: int):
        self.at = at

    def must_see(self, step):
        return step == self.at

    def on_train_batch_end(self, trainer, pl_module, *_):
        trainer.should_stop = trainer.should_stop or pl_module.sampler.steps == self.at


class Run:
    """A fit of 2 chains.

    away: how far from the origin all parameters begin. rise: zeta by the step. lines: what the promises say.
    """

    def __init__(
        self, folder: Path, *others: Callback, lr: float = 0.02, away: float = 0.0, resumed: bool = False,
        lowers: bool = True, extends: bool = True, keep: EveryStep = KEEP, steps: int = STEPS, rise: Any = None,
        cool: CoolDirections | None = None,
        **module_arguments: Any,
    ):  # fmt: skip
        module = toys.module(lr=lr, **module_arguments)
        with torch.no_grad():
            for p in module.net.parameters():
                p.add_(away)
        self.lines: list[str] = []
        collect, save = bdl.CollectSamples(keep, folder), bdl.SaveLast(folder / "checkpoints", every=steps)
        self.promises = bdl.callbacks.Promises([collect], lowers, extends, self.lines.append, cool)
        schedule = [] if rise is None else [bdl.Schedule(zeta=rise)]
        trainer = toys.trainer(folder, steps, [*schedule, self.promises, collect, save, *others])
        trainer.fit(module, toys.batches(batch=4), ckpt_path=save.path if resumed else None, weights_only=True)
        self.sampler, self.folder, self.keep = module.sampler, folder, collect.keep

    def files(self) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in sorted((self.folder / "samples").iterdir())}

    def records(self) -> list[Any]:
        return bdl.SampleStore(self.folder).records()


HOT: dict[str, Any] = {"lr": 0.3}
FAR: dict[str, Any] = {"lr": 0.3, "away": 10.0}


def test_lr_falls_where_batches_heat_the_chains(tmp_path):
    """At lr 0.3 the noise of a tenth of the items heats them to about 1.3 T. Samples are kept at one lr."""
    run = Run(tmp_path, **HOT)
    assert run.lines[0].startswith("tune: lr ") and "from step 50: noise adds" in run.lines[0]
    assert len({float(record.lr) for record in run.records()}) == 1 and len(run.records()) == 10
    assert run.sampler.param_groups[0]["lr"] < 0.15
    assert float(run.sampler.t_eff.mean()) < 1.15


def test_lr_falls_where_a_direction_is_hotter_than_promised(tmp_path):
    """At lr 0.05 the mean over directions is cool. The trials saw the hottest at 1.1 T where the mean was a third."""
    ratio = float(Run(tmp_path / "plain", lr=0.05).sampler.noise_ratio.mean())
    assert 0 < ratio < 0.1
    run = Run(tmp_path / "uneven", lr=0.05, cool=CoolDirections(0.1, ratio / 3))
    assert "from step 50: batches heat the hottest direction by about " in run.lines[0]
    assert run.sampler.param_groups[0]["lr"] < 0.05 / 2
    kept = Run(tmp_path / "even", lr=0.05, cool=CoolDirections(0.1, 2 * ratio))
    assert (kept.lines, kept.sampler.param_groups[0]["lr"]) == ([], 0.05)


def test_the_burn_in_grows_while_the_energy_falls(tmp_path):
    run = Run(tmp_path, lr=0.05, away=10.0)
    assert run.lines[0].startswith("tune: burn in 200 instead of 100: the energy still moves by")
    assert run.keep == run.promises.rule and run.keep.burn_in >= 200
    assert len(run.records()) == 10 and min(record.step for record in run.records()) > run.keep.burn_in
    assert max(record.step for record in run.records()) == STEPS


def test_chains_that_are_cool_and_at_rest_are_left_alone(tmp_path):
    run = Run(tmp_path, lr=0.05)
    assert (run.lines, run.keep, run.sampler.param_groups[0]["lr"]) == ([], KEEP, 0.05)
    assert run.promises.at_rest and run.promises.state_dict()["at_rest"]


def test_what_user_gave_stays_and_a_line_says_what_is_not_kept(tmp_path):
    run = Run(tmp_path, lr=0.02, away=20.0, extends=False)
    assert run.keep == KEEP and len(run.lines) == 1
    assert run.lines[0].startswith(
        "tune: a promise is not kept: samples are not at rest. At step 100 the energy still moves by"
    )
    assert run.lines[0].endswith("raise collect.keep.burn_in, which was given") and not run.promises.at_rest
    hot = Run(tmp_path / "hot", **HOT, lowers=False)
    assert len(hot.lines) == 1 and hot.sampler.param_groups[0]["lr"] == HOT["lr"]
    assert hot.lines[0].startswith("tune: a promise is not kept: at step 100 noise adds ")


def test_a_run_without_rest_says_so_and_keeps_its_last_third(tmp_path):
    run = Run(tmp_path, lr=0.0005, away=20.0)
    grown = [line.removeprefix("tune: ").partition(" instead")[0] for line in run.lines[:-1]]
    assert grown == ["burn in 200", "burn in 400", "burn in 490"]
    assert run.lines[-1].startswith("tune: a promise is not kept: samples are not at rest. At step 490")
    assert len(run.records()) == 10


def test_a_few_full_energies_are_read_where_they_cost_little(tmp_path):
    """A tenth of the items in a batch: an evaluation costs 3.3 steps, so 2 % of 700 steps pay for 4, too few."""
    run = Run(tmp_path, Halt(BURN_IN))
    assert not run.promises._of_all_data and run.sampler.full_loss is not None
    assert len(run.promises._rows) == BURN_IN


def no_data(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The loss of a posterior that is its prior."""
    return 0 * outputs.mean()


def gaussian(too_large: float, **others: Any) -> dict[str, Any]:
    """Arguments of `Run`: a Gaussian on which an lr of 1 has the step error e = lr h / (2 (2 - a)) = `too_large`.

    SGHMC's momenta are at T / (1 - e). 38 parameters, friction 0.5, N = 40, a burn-in of 400 steps of 1,500.
    """
    prior = bdl.Gaussian(precision=too_large * 2 * (2 - 0.5) * toys.N)
    fixed = dict(lr=1.0, loss=no_data, prior=prior, keep=EveryStep(400, 10), steps=1500, chains=2)
    return {**fixed, **others}


def rising(at: int) -> dict[str, Any]:
    """Arguments of `Run`: a weighting that multiplies the gradient of a Gaussian by 1, by 6 from step at + 50 on."""
    weighting = bdl.AdaptiveWeight(zeta=0.0, form="full", edges=[-1000.0, 0.0, 1000.0])
    return gaussian(0.13, weighting=weighting, rise=lambda step: 5000.0 * min(1.0, max(0.0, (step - at) / 50)))


def kinetic_temperature(monitor: bdl.Monitor, run: Run) -> float:
    """The mean of the chains over the steps whose states are kept; T = 1. 1,000 steps of 76 momenta: +-0.02."""
    trace = monitor.trace()
    return float(trace["kinetic_temperature"][trace["step"] > run.keep.burn_in].mean())


def test_lr_falls_where_the_error_of_the_step_heats_the_momenta(tmp_path):
    """From 5 T to what the step is allowed, and no further. Samples are kept at one lr."""
    monitor = bdl.Monitor(10)
    run = Run(tmp_path, monitor, **gaussian(0.8))
    assert "from step 200: the kinetic temperature is" in run.lines[0]
    assert 1.03 < kinetic_temperature(monitor, run) < 1.2
    assert len({float(record.lr) for record in run.records()}) == 1


def test_lr_falls_where_a_rising_zeta_multiplies_the_gradient(tmp_path):
    """By 1 at half of the burn-in, by 6 at its end: lr falls there alone, and the burn-in grows."""
    monitor = bdl.Monitor(10)
    run = Run(tmp_path, monitor, **rising(200))
    assert len(run.lines) == 2 and run.keep.burn_in > 400
    assert "from step 400: the kinetic temperature is" in run.lines[0] and "lr has just changed" in run.lines[1]
    assert 1.03 < kinetic_temperature(monitor, run) < 1.2


def test_lr_falls_at_once_when_heat_comes_while_samples_are_kept(tmp_path):
    """From 4.5 T to about 1.25 T; no sample is dropped, and the burn-in stays.

    The first readings mix with cooler ones, so lr may fall twice. Ten readings of 76 momenta have an error of 5 %, and
    four errors have to be exceeded.
    """
    monitor = bdl.Monitor(10)
    run = Run(tmp_path, monitor, **rising(800))
    falls = [int(line.partition(" from step ")[2].partition(":")[0].replace(",", "")) for line in run.lines]
    assert 800 < falls[0] <= 900 and falls[-1] <= 1200 and all("kinetic temperature" in line for line in run.lines)
    trace = monitor.trace()
    after = float(trace["kinetic_temperature"][trace["step"] > falls[-1] + 50].mean())
    assert 1.05 < after < 1.5
    records = run.records()
    assert len(records) == 110 and run.keep.burn_in == 400
    assert len({float(record.lr) for record in records}) == 1 + len(falls)


COOL = {
    "SGHMC": gaussian(1 / 6),
    "BAOAB": gaussian(0.8, dynamics=bdl.BAOAB(0.5)),
    "SGNHT": gaussian(0.3, dynamics=bdl.SGNHT(0.5)),
}


@pytest.mark.parametrize("name", slow_where("SGNHT".__eq__, COOL))
def test_lr_stays_to_the_bit_where_momenta_are_within_the_budget(tmp_path, name):
    """SGHMC's are at 1.2 T. BAOAB's are at T at any step, and those of a thermostat absorb the error of the step."""
    run = Run(tmp_path, **COOL[name])
    assert (run.lines, run.sampler.param_groups[0]["lr"]) == ([], 1.0)


def test_momenta_of_chains_that_move_downhill_do_not_lower_lr(tmp_path):
    """Batches hold all the data, lr is small and the start far away: the gradient's work heats momenta to 1.6 T."""
    monitor = bdl.Monitor(1)
    run = Run(tmp_path, monitor, lr=0.02, away=20.0, extends=False, loss=no_data)
    assert run.sampler.param_groups[0]["lr"] == 0.02
    assert float(monitor.trace()["kinetic_temperature"][25:50].mean(1).max()) > 1.5


def test_a_given_lr_stays_and_a_line_says_to_what_to_lower_it(tmp_path):
    run = Run(tmp_path, **gaussian(0.8, lowers=False))
    assert len(run.lines) == 1 and run.sampler.param_groups[0]["lr"] == 1.0
    assert run.lines[0].startswith("tune: a promise is not kept: at step 400 the kinetic temperature is ")
    assert "lower sampler.lr from 1 to 0.1" in run.lines[0]


TOO_HOT = {"noise": FAR, "step": gaussian(0.8), "late": rising(800)}


@pytest.fixture(scope="module")
def whole(request, tmp_path_factory) -> tuple[Run, dict[str, Any]]:
    """A run that nothing stops, whose batches or steps are too hot; and its arguments."""
    arguments = TOO_HOT[request.param]
    return Run(tmp_path_factory.mktemp("whole"), **arguments), arguments


SHARES = [*((hot, share) for hot in ("noise", "step") for share in (0.3, 0.75, 1.5, 3.5)), ("late", 2.3)]
BY_DEFAULT = [("noise", 0.75), ("noise", 3.5), ("late", 2.3)]


@pytest.mark.parametrize("whole, share", slow_where(lambda *case: case not in BY_DEFAULT, SHARES), indirect=["whole"])
def test_a_resumed_run_decides_the_same(tmp_path, whole, share):
    """Before the first decision, after it, after the second, and while samples are kept; shares of the burn-in.

    "late": between the rise of the heat and the fall of lr.
    """
    uninterrupted, arguments = whole
    at = int(share * arguments.get("keep", KEEP).burn_in)
    assert uninterrupted.lines
    Run(tmp_path / "parts", Halt(at), **arguments)
    parts = Run(tmp_path / "parts", **arguments, resumed=True)
    assert parts.files() == uninterrupted.files()
    assert parts.sampler.param_groups[0]["lr"] == uninterrupted.sampler.param_groups[0]["lr"] < arguments["lr"]


@pytest.mark.parametrize("whole", slow_where("noise".__ne__, TOO_HOT), indirect=True)
def test_blocks_of_steps_decide_as_single_steps_do(tmp_path, whole):
    blocks, arguments = whole
    single = Run(tmp_path, toys.EveryBatch(), **arguments)
    assert blocks.files() == single.files() and blocks.lines == single.lines
