"""Steps whose gradient is a graph leave what steps without graphs leave, to the bit. `tape` stands in for CUDA graphs.

The runs are in double precision, because in single precision tanh reads a number on a CPU, and MLPKernel runs there.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from repeats import slow_where
from tape import Tapes
from test_blocks import Seen, leaves
from torch import nn

import bdl
from bdl.data import TensorBatches
from bdl.engine import choose
from bdl.models import MLP
from bdl.schedules import Cosine, EveryStep

STEPS = 70  # of epochs of 40, so that a block ends between them


@dataclass(frozen=True)
class Case:
    chains: int = 3
    net: Any = None
    loss: Any = None
    values: bool = False  # real labels in place of classes
    batch: int = 1
    sampler: dict[str, Any] = field(default_factory=dict)
    temperature: Any = Cosine(2.0, STEPS, final=0.5)


RANGE = {"low": 0.0, "high": 120.0, "bins": 10}
FROZEN = nn.Linear(toys.D, 5).requires_grad_(False)
CASES = {
    "flat": Case(),
    "other layers, the first one frozen": Case(
        net=nn.Sequential(FROZEN, nn.GELU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 3))
    ),
    "values": Case(loss=bdl.GaussianNLL(0.5), values=True, chains=1),
    "T = 0 half of the time": Case(temperature=lambda step: float(step // 10 % 2)),
    "weighted": Case(sampler={"weighting": bdl.AdaptiveWeight(zeta=2.0, **RANGE)}),
    "thermostat": Case(sampler={"dynamics": bdl.SGNHT(0.5, rate=0.01)}),
    "isokinetic": Case(sampler={"dynamics": bdl.SMILE(adapt_steps=30)}),
    "controlled": Case(sampler={"dynamics": bdl.CCHMC(0.5, rank=3, adapt_steps=30)}, batch=8),
    "estimated noise": Case(sampler={"dynamics": bdl.SGHMC(0.5, grad_var="estimated")}),
    "exchange": Case(sampler={"exchange": bdl.Exchange((1.0, 1.5, 2.0), every=3)}),
    "clip, Student-t": Case(sampler={"clip": bdl.ClipNorm(0.5), "prior": bdl.StudentT(3.0, "he")}),
}
SAME_WAY = ("isokinetic", "clip, Student-t")  # recorded as another case is


class Run:
    """One fit, with graphs if `tapes` are given, and with samples and checkpoints if there is a folder for them."""

    def __init__(self, case: Case, tapes: Tapes | None, *others: Any, folder: Path | None = None, **options: Any):
        self.folder, resume = folder, options.pop("resume", None)
        torch.manual_seed(7 if resume is None else 8)
        net = MLP((toys.D, 5, toys.K)) if case.net is None else case.net
        self.module = toys.module(bdl.ChainStack(net, case.chains), case.chains, case.loss, **case.sampler)
        self.module.compiled = options.pop("compile", "auto")
        callbacks = [bdl.Schedule(lr=Cosine(0.1, STEPS, final=0.01), temperature=case.temperature), bdl.Monitor(15)]
        if folder is not None:
            self.checkpoint = folder / "checkpoints" / "last.ckpt"
            callbacks += [bdl.CollectSamples(EveryStep(35, 10), folder), bdl.SaveLast(folder / "checkpoints", every=33)]
        self.trainer = toys.trainer("unused", STEPS, [*callbacks, *others], precision="64-true", **options)
        x, y = toys.tensors()
        labels = x.tanh() if case.values else y
        loader = TensorBatches(x, labels, case.batch, chains=case.chains)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(choose, "recorder_for", lambda device: tapes)
            self.trainer.fit(self.module, loader, ckpt_path=resume, weights_only=True)

    def left(self) -> dict[str, Any]:
        """Parameters, momenta, psi, the random stream, the step; with a folder the files and the whole checkpoint."""
        state = {"theta": self.module.sampler.chain.theta, "sampler": self.module.sampler.state_dict()}
        if self.folder is None:
            return dict(leaves(state))
        files = {p.name: p.read_bytes() for p in sorted((self.folder / "samples").iterdir())}
        assert len(files) >= 3
        return files | dict(leaves([state, torch.load(self.checkpoint, weights_only=True)]))


def differ(one: Run, other: Run) -> set[str]:
    a, b = one.left(), other.left()
    return {k for k in a.keys() | b.keys() if a.get(k) != b.get(k)}


@pytest.mark.filterwarnings("ignore::bdl.BdlWarning")
@pytest.mark.parametrize("name", slow_where(SAME_WAY.__contains__, CASES))
def test_graphs_leave_the_state_of_plain_steps(name):
    """lr and T change in every step, and steps with and without energy alternate."""
    tapes = Tapes()
    assert differ(Run(CASES[name], tapes), Run(CASES[name], None)) == set()
    kinds = 4 if name == "exchange" else 2  # the gradient; a step without a swap; even and odd pairs that swap
    assert tapes.launches > 0.6 * STEPS and len(tapes.made) <= kinds  # the first step of a block is Lightning's own


def test_a_run_with_graphs_is_stopped_inside_a_block_and_resumed(tmp_path):
    """Sample files and checkpoints are those of a run without graphs that was not stopped."""
    case, stop, tapes = CASES["weighted"], Seen(at=41), Tapes()
    whole = Run(case, None, folder=tmp_path / "whole")
    first = Run(case, tapes, stop, folder=tmp_path / "parts")
    assert first.trainer.global_step == 42 and tapes.launches > 20
    second = Run(case, tapes, folder=tmp_path / "parts", resume=first.checkpoint)
    # Lightning has a count of its own of epochs that were resumed
    assert {k for k in differ(whole, second) if "/loops/fit_loop/epoch_progress" not in k} == set()


class Moves(bdl.callbacks.StepCallback):
    """Replaces the memory of all parameters at step 30, as `.to()` does."""

    def must_see(self, step: int) -> bool:
        return step == 30

    def on_train_batch_end(self, trainer, pl_module, *_):
        if trainer.global_step == 30:
            for p in pl_module.parameters():
                p.data = p.data.clone()


def test_parameters_that_move_are_recorded_anew():
    """A tape keeps no memory alive that it did not allocate, so a record of the old memory would fail."""
    tapes = Tapes()
    assert differ(Run(CASES["weighted"], tapes, Moves()), Run(CASES["weighted"], None, Moves())) == set()
    assert len(tapes.made) == 2


class OwnLikelihood(bdl.likelihoods.Likelihood):
    """Its gradient is found by autograd."""

    def __call__(self, outputs, y):
        return bdl.CategoricalNLL()(outputs, y)


@pytest.mark.filterwarnings("ignore::bdl.BdlWarning", "ignore:.*label_smoothing")
@pytest.mark.parametrize(
    ("case", "options"),
    [
        (Case(), {"compile": False}),
        (Case(loss=OwnLikelihood()), {}),
        (Case(loss=nn.CrossEntropyLoss(label_smoothing=0.1)), {}),
        (Case(net=MLP((toys.D, 5, toys.K), dropout=0.3)), {}),
        (Case(), {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "value"}),
        (Case(), {"accumulate_grad_batches": 2}),
    ],
    ids=["compile=false", "own likelihood", "any loss", "dropout", "Lightning's clipping", "accumulation"],
)
def test_what_a_graph_may_not_hold_is_made_step_by_step(case, options):
    tapes = Tapes()
    Run(case, tapes, **options)
    assert not tapes.made


def test_a_callback_that_sees_every_batch_prevents_recording():
    tapes = Tapes()
    assert differ(Run(CASES["flat"], tapes, toys.EveryBatch()), Run(CASES["flat"], None)) == set()
    assert not tapes.made
