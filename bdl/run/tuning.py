"""What `tune=auto` and `budget` do before a run begins: choose what was not given, print it, and record it."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import bdl
from bdl.data.loader import TensorBatches, WorkerBatches
from bdl.data.module import DataModule
from bdl.errors import ConfigError
from bdl.run.build import build_net, nothing_to_tune
from bdl.run.config import seconds_of
from bdl.run.launch import start_by
from bdl.run.machine import find_device, prepare_torch
from bdl.run.plan import Compute, Plan, RunRequest
from bdl.run.processes import ProcessInfo
from bdl.run.records import read_config
from bdl.run.run_data import RunData
from bdl.run.sampler_settings import SamplerSettings
from bdl.run.stack_plan import StackPlan
from bdl.run.tuning_request import SETTINGS, TuningRequest
from bdl.samplers.weighting.base import AUTO
from bdl.tune.budget import (
    FEWEST_RUN_STEPS,
    choose_every,
    choose_samples,
    choose_steps,
    seconds_of_evaluation,
    seconds_per_step,
)
from bdl.tune.burn_in import MOST_BURN_IN
from bdl.tune.choice import Choice, Tuning
from bdl.tune.cycles import choose_cycles
from bdl.tune.find import describe_untuned, find_settings, rows_of_trials
from bdl.tune.optimiser import is_optimiser, stay_at_start
from bdl.tune.prior import is_around_zero
from bdl.tune.sampler import FULL_BATCH_ROWS, ON_BATCHES, choose_length, choose_sampler, with_length
from bdl.tune.trial import Problem
from bdl.tune.weighting import PLAIN, Explored

SGHMC = {"_target_": "bdl.SGHMC", "friction": ON_BATCHES.friction}
NODES = {"sghmc": SGHMC, PLAIN: {"_target_": "bdl.Flat"}}  # of what is chosen by name
START_UP, REPORT = 5.0, 8.0  # seconds before the configuration is read and to write a report, of a small run
MOST_IMAGES = 4096  # training images that trials look at; the rows of a table are all looked at
START_SHARE = 0.1  # steps of the trials' deep ensemble, as a share of the run's
FEWEST_STEPS = 2000  # steps of the ensemble where no budget bounds them: the curvature rises while it trains
NOT_TRIED = Explored.plain("no trial says how hot they may move")
OF_OPTIMISERS = ("prior", "batch_size")  # settings that an optimiser keeps
FEWEST_EPOCHS = 5  # epochs of the ensemble in any case
_ASIDE: list[RunData] = []  # the data, in the copy of a process that finds settings


def tuned(request: RunRequest, process: ProcessInfo, data: RunData | None = None) -> Plan:
    """The plan with what tuning found: what config.yaml records for a run that has begun, else what is found now.

    Raises ConfigError where a budget cannot be kept, because others start the processes.
    """
    plan = request.draft
    if plan.tuning is None:
        return plan
    if (plan.folder / "config.yaml").exists():
        return request.plan(read_config(plan.folder).get("found"))
    if process.launched and plan.tuning.budget is not None:
        raise ConfigError("budget needs processes that bdl starts itself, and others have started these: set length")
    began, compute = time.perf_counter(), plan.compute
    prepare_torch(compute.threads, compute.tf32, plan.stacks.carriers, compute.compiled)
    tuning = _choose_aside(request, data or RunData(process.is_main), began)
    choices, seconds = tuning.choices, time.perf_counter() - began
    if process.is_main:
        print(*choices, f"tune: took {seconds:.1f} s", sep="\n", flush=True)
    found = {"settings": _settings(choices), "reasons": list(map(str, choices)), "seconds": round(seconds, 1)}
    heat = (("hottest", tuning.hottest), ("noise_ratio", tuning.noise_ratio))
    return request.plan(found | {name: float(f"{v:.4g}") for name, v in heat if v is not None})


def _settings(choices: Sequence[Choice]) -> dict[str, Any]:
    """The values of the choices by key; a sampler's is the node of its dynamics, a mapping stands for keys below."""
    found: dict[str, Any] = {}
    for choice in choices:
        for key in SETTINGS[choice.name][0]:
            value = choice.value
            if isinstance(value, Mapping):
                found |= {f"{key}.{name}": each for name, each in value.items()}
            else:
                found[key] = NODES.get(value, value) if isinstance(value, str) else value
    return found


def _choose_aside(request: RunRequest, data: RunData, began: float) -> Tuning:
    """`_choose` in a copy of this process where this one will fork.

    What the work loads may leave threads behind, and a process that has them cannot fork those of its stacks.
    """
    plan = request.draft
    if plan.stacks.carriers == 1 or start_by(plan.compute.accelerator) != "fork":
        return _choose(request, data, began)
    # given as the copy is made: what is submitted is pickled, and would lose the rows of the data
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork"), _ASIDE.append, (data,)) as pool:
        return pool.submit(_choose_of_copy, request, began).result()


def _choose_of_copy(request: RunRequest, began: float) -> Tuning:
    return _choose(request, _ASIDE[0], began)


def _choose(request: RunRequest, data: RunData, began: float) -> Tuning:
    """What was found, with all choices in the order in which they are printed.

    began: `time.perf_counter()` before the tuning.
    """
    assert (tuning := request.draft.tuning) is not None
    if tuning.budget is not None and "steps" in tuning.given:
        raise ConfigError(f"budget={tuning.budget} and length both say how many steps there are: give one of them")
    if tuning.temperature is True and "temperature" in tuning.given:
        raise ConfigError("tune.temperature=true and sampler.temperature both decide T: give one of them")
    case = _Case.of(request, data)
    if tuning.budget is not None and (budget := seconds_of(tuning.budget)) is not None:
        return _choose_within(case, budget, began)
    found, _ = case.tune(int(case.stack.motion.steps), FEWEST_STEPS)
    return replace(found, choices=(*with_length(case.by_rows, found.rhat, case.data.num_data), *found.choices))


def _choose_within(case: _Case, budget: float, began: float) -> Tuning:
    """What was found for a run of so many seconds. Raises ConfigError for a loader whose steps cannot be timed."""
    loader, stacks = case.data.train_dataloader(), case.plan.stacks
    if not isinstance(loader, TensorBatches | WorkerBatches):  # a trial would time its own steps, which are faster
        raise ConfigError(
            f"budget={case.tuning.budget} can time the loaders of bdl.data alone, got {type(loader).__name__}: set "
            "length, or make the data a bdl.data.TensorDataModule"
        )
    turns = -(-stacks.count // stacks.carriers)
    step_seconds = seconds_per_step(case.problem, case.sampler.dynamics)
    tuning, start_seconds = case.tune(max(FEWEST_RUN_STEPS, int(budget / (step_seconds * turns))), 0)
    before = START_UP + time.perf_counter() - began + turns * start_seconds
    choices = [*case.by_rows, *tuning.choices]
    chosen = case.within(budget, choices, before, tuning.step_seconds or step_seconds, turns)
    return replace(tuning, choices=tuple(chosen))


@dataclass(frozen=True)
class _Case:
    """The first stack of a run, as trials look at it. given: names of settings that are not to be found."""

    request: RunRequest
    plan: Plan
    stack: StackPlan
    data: DataModule
    problem: Problem  # this stack on its device, with the training items, or an even part of many images
    given: frozenset[str]
    by_rows: tuple[Choice, ...]  # the sampler and its steps, where their number decides them

    @property
    def tuning(self) -> TuningRequest:
        assert self.plan.tuning is not None
        return self.plan.tuning

    @property
    def sampler(self) -> SamplerSettings:
        return self.stack.motion.sampler

    @classmethod
    def of(cls, request: RunRequest, run_data: RunData) -> _Case:
        plan = request.draft
        assert (tuning := plan.tuning) is not None
        data = run_data.build(plan.data(plan.stacks.first), warn=False)
        by_rows = _by_rows(plan.of_stack(plan.stacks.first, data).motion.sampler, data, tuning)
        plan = request.plan({"settings": _settings(by_rows)}) if by_rows else plan
        stack = plan.of_stack(plan.stacks.first, data)
        its_own = {"every"} if stack.keeping.in_cycles else set()  # it keeps by its own rule
        if "batch_size" not in plan.data(plan.stacks.first).node or data.num_data > data.count("train"):
            its_own.add("batch_size")  # a user's own loader decides it, and windows of text are dear
        if not is_around_zero(stack.motion.sampler.prior):  # the priors that the search compares are around zero
            its_own.add("prior")
        problem = _problem_of(stack, data, plan.compute)
        return cls(request, plan, stack, data, problem, tuning.given | its_own, by_rows)

    def tune(self, steps: int, fewest: int) -> tuple[Tuning, float]:
        """What `find_settings` chooses for a run of so many steps, and the seconds that the start of the run will take.

        fewest: steps of the deep ensemble at which trials begin, where the run begins at one.
        """
        weighting, dynamics = self.sampler.weighting, self.sampler.dynamics
        if not self.tuning.auto:
            return Tuning((), 0.0, 0.0), 0.0
        if (reason := nothing_to_tune(self.stack, self.plan.compute.strategy)) is not None:
            print(f"tune: there is nothing to find for {reason}")
            return Tuning(NOT_TRIED.choices if weighting.zeta == AUTO else (), 0.0, 0.0), 0.0
        optimises = is_optimiser(dynamics, self.problem.temperature)
        if optimises and self.stack.keeps_start and "lr" not in self.given:
            return Tuning(tuple(c for c in stay_at_start() if c.name not in self.given), 0.0, 0.0), 0.0
        if not optimises and (line := describe_untuned(dynamics)) is not None:
            print(f"{line}; a multiplier divides lr" if weighting.zeta == AUTO else line)
        finds_t = self.tuning.finds_temperature(self.data.task, self.sampler)
        seconds, problem = self._train(max(START_SHARE * steps, fewest)), self.problem
        tuning = find_settings(
            problem.stack, problem.loss, problem.items, _items(self.data, "val") if self.data.has("val") else None,
            dynamics, num_data=problem.num_data, steps=steps, weighting=weighting, exchange=self.sampler.exchange,
            temperature=None if finds_t else problem.temperature, given=self.fixed(optimises), groups=problem.groups,
            seed=problem.seed, compiled=problem.compiled, heat=self.tuning.heat, labels=problem.labels,
        )  # fmt: skip
        if optimises or not self.stack.keeping.in_cycles:
            return tuning, seconds
        cyclic = choose_cycles(tuning.choices, problem, dynamics, self.sampler.prior, steps)
        return replace(tuning, choices=tuple(c for c in cyclic if c.name not in self.given)), seconds

    def fixed(self, optimises: bool) -> dict[str, Any]:
        """The settings that are not to be found, with their values. An optimiser keeps further ones."""
        dynamics, ladder = self.sampler.dynamics, self.sampler.exchange
        present = {
            "batch_size": self.data.batch_size, "prior": self.sampler.prior, "lr": self.sampler.lr,
            "friction": dynamics.friction, "burn_in": self.stack.keeping.rule.get("burn_in"),
        }  # fmt: skip
        present |= {} if ladder is None else {"lr_power": ladder.lr_power, "swap_every": ladder.every}
        kept = present if self.tuning.weighting_alone else self.given
        given = {name: value for name, value in present.items() if name in kept or optimises and name in OF_OPTIMISERS}
        if "lr" not in self.given and ("lr" in given or "lr" not in dynamics.tunable):
            given["plain_lr"] = present["lr"]
            given.pop("lr", None)
        return given

    def within(
        self, budget: float, choices: Sequence[Choice], before: float, step_seconds: float, turns: int
    ) -> list[Choice]:
        """The choices, with the steps and the samples for which the budget leaves time.

        before: seconds until the first step. turns: stacks that one process carries after another.
        """
        keep, steps = self.stack.keeping.rule, int(self.stack.motion.steps)
        wanted = max(1, (steps - keep.get("burn_in")) // keep.get("every"))  # samples of one chain, without cycles
        data, train = self.data, self.data.num_data
        predicted = data.count("val") + data.count("test") + min(train, self.plan.report.train_items or train)
        per_sample = turns * seconds_of_evaluation(self.problem, predicted)
        samples = wanted if "every" in self.given else choose_samples(budget, per_sample, wanted)
        timed = choose_steps(budget, step_seconds, turns, before, REPORT + samples * per_sample)
        longest = round(MOST_BURN_IN * timed.value)  # the longest burn-in
        chosen = [replace(c, value=min(c.value, longest)) if c.name == "burn_in" else c for c in choices] + [timed]
        if samples < wanted:
            shorter = self.request.plan({"settings": _settings([*self.by_rows, timed])})
            burn_in = shorter.of_stack(self.stack.chains.stack, self.data).keeping.rule.get("burn_in")
            burn_in = next((choice.value for choice in chosen if choice.name == "burn_in"), burn_in)
            chosen.append(choose_every(timed.value, burn_in, samples, wanted))
        return chosen

    def _train(self, steps: float) -> float:
        """Where the run begins at a deep ensemble, train the stack as one, for so many steps or up to its early stop.

        Returns the seconds that the run's own training is expected to take: as many epochs, or twice as many where the
        end was not in sight.
        """
        start = section.build() if (section := self.stack.chains.start) else None
        if not isinstance(start, bdl.AdamWStart):
            return 0.0
        epochs = max(FEWEST_EPOCHS, round(steps * start.batch_size / self.data.num_data))
        began, problem = time.perf_counter(), self.problem
        rows = None if self.data.has("val") else rows_of_trials(problem.count, problem.seed, problem.groups)[0]
        trained = replace(start, epochs=min(start.epochs, epochs)).train(
            problem.stack, self.data.train_dataloader(), problem.loss, self.data.val_dataloader() or None,
            compiled=problem.compiled, groups=problem.groups, rows=rows,
        )  # fmt: skip
        seconds = time.perf_counter() - began
        return seconds if trained.epochs < epochs else 2 * seconds


def _problem_of(stack: StackPlan, data: DataModule, compute: Compute) -> Problem:
    """A stack on its device, with the training items, or an even part of many images."""
    device = torch.device("cpu") if compute.accelerator == "cpu" else find_device(None)
    net, of = build_net(stack.target, data), stack.chains
    chains = bdl.ChainStack(net, of.count, seed=of.seed, stack=of.stack, shared=of.shared_batches).to(device)
    x, y = _items(data, "train")
    return Problem(
        chains, stack.target.loss.build(), (x.to(device), y.to(device)), data.num_data, data.batch_size,
        float(stack.motion.sampler.temperature), of.seed, compute.compiled, labels=data.num_data // data.count("train"),
        groups=data.groups.get("train"),
    )  # fmt: skip


def _by_rows(sampler: SamplerSettings, data: DataModule, tuning: TuningRequest) -> tuple[Choice, ...]:
    """SGHMC in place of MCLMC for batches, or for more rows than a step can take; only what the user left open."""
    if not tuning.auto or not isinstance(sampler.dynamics, bdl.MCLMC):
        return ()
    rows, in_batches = data.num_data, "batch_size" in tuning.given and data.batch_size < data.num_data
    name = "mclmc" if "sampler" in tuning.given else "sghmc" if in_batches else choose_sampler(rows)
    reason = f"a step of mclmc takes all {rows:,} training rows, "
    reason += f"not {data.batch_size:,}" if in_batches else f"and more than {FULL_BATCH_ROWS:,} are too dear"
    steps = Choice("length", choose_length(name, rows), f"steps of {name} for {rows:,} training rows")
    chosen = () if name == "mclmc" else (Choice("sampler", name, reason),)
    return chosen if "length" in tuning.given else (*chosen, steps)


def _items(data: DataModule, split: str) -> tuple[Tensor, Tensor]:
    """The items of a split as the network sees them, or an even part of many images."""
    return data.items(split, None if len(data.input_shape) == 1 else MOST_IMAGES)
