"""Tests of `bdl.samplers.moves`: many steps in one call of compiled code leave what single steps leave, to the byte."""

import warnings
from pathlib import Path

import pytest
import torch
import toys
from repeats import slow_where
from test_blocks import STEPS, Case, Run, assert_equal, assert_equal_but_for_zero_grad

import bdl
from bdl import native
from bdl.samplers.compiled.update import CompiledUpdate

pytestmark = pytest.mark.skipif(native.load(CompiledUpdate.source) is None, reason="no C compiler")

CASES = {
    "sghmc": Case(),
    "baoab": Case(sampler={"dynamics": bdl.BAOAB(0.3)}),
    "sgnht": Case(sampler={"dynamics": bdl.SGNHT(0.5, rate=0.01)}),
    "short epochs": Case(batch=4),
    "uniform prior": Case(sampler={"prior": bdl.Uniform()}),
    "scaled prior": Case(sampler={"prior": bdl.Gaussian("he")}),
    "whole batches": Case(batch=toys.N),
    "mclmc": Case(batch=toys.N, sampler={"dynamics": bdl.MCLMC(adapt_steps=60, adjusted=True), "lr": 0.01}),
    "mclmc, leapfrog": Case(batch=toys.N, sampler={"dynamics": bdl.MCLMC("leapfrog"), "lr": 0.01}, chains=1),
}
SAME_WAY = ("uniform prior", "mclmc, leapfrog")  # as a case with other numbers


@pytest.fixture
def walked(monkeypatch) -> list[int]:
    """The lengths of the walks that were made, in steps."""
    lengths: list[int] = []
    walk = bdl.Sampler.walk

    def counting(*arguments):
        lengths.append(walk(*arguments))
        return lengths[-1]

    monkeypatch.setattr(bdl.Sampler, "walk", counting)
    return lengths


class Unseen(Run):
    """A fit in which nothing has to be called before a step but what says what it will do."""

    def __init__(self, folder: Path, case: Case, *others, **arguments):
        super().__init__(folder, case, *others, watched=False, **arguments)


@pytest.mark.filterwarnings("ignore::bdl.BdlWarning")
@pytest.mark.parametrize("name", slow_where(SAME_WAY.__contains__, CASES))
def test_walks_leave_the_files_and_checkpoint_of_single_steps(tmp_path, walked, name):
    walks = Unseen(tmp_path / "a", CASES[name])
    steps = sum(walked)
    single = Unseen(tmp_path / "b", CASES[name], toys.EveryBatch())
    assert steps > STEPS / 2 and sum(walked) == steps  # the second fit made none
    assert name != "short epochs" or max(walked) > toys.N // CASES[name].batch, "no walk has gone beyond an epoch"
    assert_equal_but_for_zero_grad(walks, single) if "mclmc" in name else assert_equal(walks, single)


STOPS = [(name, at) for name in ("sghmc", "sgnht", "mclmc") for at in (7, 39, 45, 71)]


@pytest.mark.parametrize("name, at", slow_where(lambda name, at: name != "sghmc" and at != 45, STOPS))
def test_a_run_that_stops_where_another_walks_on_resumes_to_byte(tmp_path, walked, name, at):
    whole = Unseen(tmp_path / "whole", CASES[name])
    first = Unseen(tmp_path / "parts", CASES[name], toys.Stops(at))
    assert 1 < first.trainer.global_step < STEPS
    second = Unseen(tmp_path / "parts", CASES[name], resume=first.checkpoint)
    assert second.files() == whole.files() and sum(walked) > STEPS
    one, other = second.state(), whole.state()
    differ = {k for k in one.keys() | other.keys() if one.get(k) != other.get(k)}
    assert all(k.startswith("/loops/fit_loop/epoch_progress") or "mclmc" in name and "/zero_grad/" in k for k in differ)


class Spoils(bdl.callbacks.StepCallback):
    """Puts a NaN into a parameter of chain 1 after step `at`."""

    def __init__(self, at: int):
        self.at = at

    def must_see(self, step):
        return step == self.at

    def on_train_batch_end(self, trainer, pl_module, *_):
        if pl_module.sampler.steps == self.at:
            pl_module.sampler.chain.theta[1, 3] = torch.nan


def test_gradient_that_is_not_finite_is_named_as_by_single_step(tmp_path, walked):
    """A huge input, which a chain meets in the middle of a walk, makes its gradient infinite."""
    said, (x, y) = [], toys.tensors()
    x[17] = 1e38
    for callbacks in ((), (toys.EveryBatch(),)):
        module = toys.module(torch.nn.Linear(toys.D, toys.K), chains=3, lr=1.0)
        with pytest.raises(bdl.DivergedError) as error:
            toys.trainer(tmp_path, 60, callbacks).fit(module, bdl.data.TensorBatches(x, y, 1, chains=3))
        said.append(str(error.value))
    assert said[0] == said[1] and sum(walked) > 0


def test_divergence_in_a_walk_drops_a_chain_as_in_a_single_step(tmp_path, walked):
    left = []
    for callbacks in ((Spoils(20),), (Spoils(20), toys.EveryBatch())):
        module, trainer = toys.module(chains=3, on_divergence="drop"), toys.trainer(tmp_path, 60, callbacks)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(module, toys.batches(3, 1))
        left.append((dict(module.sampler.survivors.lost), module.sampler.chain.theta.clone()))
    assert left[0][0] == left[1][0] and len(left[0][0]) == 1 and torch.equal(left[0][1], left[1][1])
    assert sum(walked) > 20


def test_noise_drawn_for_steps_walk_did_not_make_is_drawn_again(tmp_path, walked):
    """One chain of three meets the infinite input among its first 12 items, in the middle of a walk, and is dropped."""
    left, (x, y) = [], toys.tensors()
    orders = [toys.batches(3, 1).rows_ahead(40)[:, c, 0].tolist() for c in range(3)]
    row = next(r for r in range(toys.N) if sorted(order.index(r) > 12 for order in orders) == [False, True, True])
    x[row] = torch.inf
    for callbacks in ((), (toys.EveryBatch(),)):
        module = toys.module(torch.nn.Linear(toys.D, toys.K), chains=3, lr=1.0, on_divergence="drop")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            toys.trainer(tmp_path, 13, callbacks).fit(module, bdl.data.TensorBatches(x, y, 1, chains=3))
        left.append((dict(module.sampler.survivors.lost), module.sampler.chain.theta.clone()))
    assert left[0][0] == left[1][0] and len(left[0][0]) == 1 and torch.equal(left[0][1], left[1][1])
    assert 0 < sum(walked) < 11


def test_compile_false_makes_no_walk(tmp_path, walked):
    module = toys.module(chains=3)
    module.compiled = False
    toys.trainer(tmp_path, 60).fit(module, toys.batches(3, 1))
    assert not sum(walked) and not module.sampler.host.compiled


@pytest.mark.parametrize(
    "settings",
    [
        {"weighting": bdl.AdaptiveWeight(zeta=2.0, low=0.0, high=120.0, bins=10)},
        {"clip": bdl.ClipNorm(1.0)},
        {"prior": bdl.Laplace(1.0)},
        {"temperature": torch.tensor([1.0, 1.0, 2.0])},
    ],
    ids=["weighted", "clipped", "laplace", "T per chain"],
)
def test_what_a_walk_does_not_know_makes_single_steps(tmp_path, walked, settings):
    toys.trainer(tmp_path, 60).fit(toys.module(chains=3, **settings), toys.batches(3, 1))
    assert not sum(walked)


@pytest.mark.parametrize("walks", [True, False])
def test_a_loader_is_asked_for_rows_only_where_steps_are_walked(tmp_path, monkeypatch, walks):
    """Once it is asked for rows it puts no epoch in order, and each batch of single steps would be gathered alone."""
    asked, rows_ahead = [], bdl.data.TensorBatches.rows_ahead
    monkeypatch.setattr(bdl.data.TensorBatches, "rows_ahead", lambda *a: asked.append(rows_ahead(*a)) or asked[-1])
    weighting = bdl.Flat() if walks else bdl.AdaptiveWeight(low=0.0, high=120.0, bins=10)
    Unseen(tmp_path, Case(sampler={"weighting": weighting}))
    assert bool(asked) == walks
