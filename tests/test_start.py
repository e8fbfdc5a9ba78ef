"""Tests of `bdl.start` and `.data.split`.

AdamWStart: every member is trained by AdamW and stopped by itself, on items that it is not stopped on.
"""

import copy
import math

import pytest
import torch
import toys
from torch import nn

import bdl
from bdl.data import TensorBatches, TensorSlices, WorkerBatches
from bdl.data.split import hold_out
from bdl.engine.functional import evaluating
from bdl.models import MLP
from bdl.seeding import derive_seed
from bdl.start import AdamWStart, Trained

CHAINS = 3
LOSS = bdl.CategoricalNLL()
QUICK = AdamWStart(lr=0.05, weight_decay=0.1, batch_size=10, epochs=30, patience=3)


def validation() -> TensorSlices:
    return TensorSlices(*toys.tensors(seed=2), batch_size=16)


def members(stack: bdl.ChainStack, build) -> list[nn.Module]:
    nets = [build() for _ in range(stack.chains)]
    for c, net in enumerate(nets):
        net.load_state_dict({k: v[c].clone() for k, v in stack.net.state_dict().items()})
    return nets


def alone(net: nn.Module, c: int, start: AdamWStart) -> tuple[nn.Module, int]:
    """Member c, trained without a stack by torch's AdamW and autograd; its best state, and the epoch of that state."""
    batches = TensorBatches(*toys.tensors(), start.batch_size, chains=CHAINS, seed=derive_seed("start", 0))
    x_val, y_val = toys.tensors(seed=2)
    optimizer = torch.optim.AdamW(net.parameters(), start.lr, weight_decay=start.weight_decay)
    lowest, best, at = math.inf, copy.deepcopy(net), 0
    for epoch in range(1, start.epochs + 1):
        for x, y in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[c]), y[c]).backward()
            optimizer.step()
        with torch.no_grad(), evaluating(net):
            loss = nn.functional.cross_entropy(net(x_val), y_val).item()
        if loss < lowest:
            lowest, best, at = loss, copy.deepcopy(net), epoch
        if epoch - at >= start.patience:
            break
    return best, at


def compare_with_members_alone(build, start: AdamWStart, **options) -> Trained:
    """Train a stack, and each of its members by itself; their best states must agree to rounding."""
    stack = bdl.ChainStack(build, CHAINS)
    nets = members(stack, build)
    trained = start.train(stack, toys.batches(CHAINS), LOSS, validation(), **options)
    for c, net in enumerate(nets):
        best, epoch = alone(net, c, start)
        assert int(trained.best_epoch[c]) == epoch
        for name, tensor in best.state_dict().items():
            torch.testing.assert_close(stack.net.state_dict()[name][c], tensor, rtol=1e-3, atol=1e-4)
    return trained


@pytest.mark.parametrize("compiled", ["auto", False])
def test_a_stack_is_its_members_trained_alone(compiled):
    trained = compare_with_members_alone(lambda: MLP((toys.D, 5, toys.K)), QUICK, compiled=compiled)
    assert len(set(trained.best_epoch.tolist())) > 1  # they stop at different epochs
    assert trained.epochs == int(trained.best_epoch.max()) + QUICK.patience


def test_buffers_of_other_networks_belong_to_the_best_epoch():
    def build() -> nn.Module:
        # No bias before BatchNorm: its gradient is rounding alone, which AdamW scales to whole steps
        first = nn.Linear(toys.D, 6, bias=False)
        return nn.Sequential(first, nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, toys.K))

    trained = compare_with_members_alone(build, QUICK)
    assert int(trained.best_epoch.min()) < trained.epochs


def test_the_reported_loss_is_that_of_the_kept_state():
    stack = bdl.ChainStack(MLP((toys.D, 5, toys.K)), CHAINS)
    trained = QUICK.train(stack, toys.batches(CHAINS), LOSS, validation())
    x, y = toys.tensors(seed=2)
    losses = LOSS(stack.broadcast(x), y.expand(CHAINS, -1)).mean(-1)
    torch.testing.assert_close(losses.double(), trained.val_loss)


def test_a_regression_on_shared_batches_learns():
    x = torch.linspace(-1, 1, 100).unsqueeze(1)
    stack = bdl.ChainStack(MLP((1, 8, 2)), CHAINS, shared=True)
    AdamWStart(lr=0.02, epochs=200).train(stack, TensorBatches(x, 3 * x, 20), bdl.HeteroscedasticNLL())
    mean, _ = stack(x).detach().chunk(2, -1)
    assert float((mean - 3 * x).square().mean().sqrt()) < 0.3  # the spread of 3 x is 1.7


class Recorder:
    """A plain loss that notes the items, whose numbers are their targets, that it is called with."""

    def __init__(self):
        self.trained: set[int] = set()
        self.validated: set[int] = set()

    def __call__(self, outputs, y):
        (self.trained if torch.is_grad_enabled() else self.validated).update(y.flatten().int().tolist())
        return (outputs - y).square().mean()


class Passes:
    """Counts the steps before each validation."""

    def __init__(self):
        self.steps, self.at = 0, []

    def __call__(self, outputs, y):
        if torch.is_grad_enabled():
            self.steps += 1
        else:
            self.at.append((self.steps, y.shape[-2]))
        return (outputs - y).square().mean()


def test_a_long_pass_is_validated_within_and_on_an_even_part(monkeypatch):
    monkeypatch.setattr("bdl.start.EPOCH_STEPS", 3)
    monkeypatch.setattr("bdl.start.STOPPING_ITEMS", 4)
    passes = Passes()
    trained = AdamWStart(lr=1e-3, batch_size=8, epochs=4, val_fraction=0.2).train(
        bdl.ChainStack(nn.Linear(1, 1), 1), numbered(1), passes
    )  # 40 training items: a pass has 5 steps
    assert [steps for steps, _ in passes.at] == [3, 6, 9, 12] and trained.epochs == 4
    assert {items for _, items in passes.at} == {4}  # every third of the 10 that are held out


def numbered(chains: int | None = CHAINS) -> TensorBatches:
    x = torch.arange(50.0).unsqueeze(1)
    return TensorBatches(x, x, 50, chains=chains)


def test_training_items_are_held_out_where_no_validation_part_is():
    recorder, batches = Recorder(), numbered()
    AdamWStart(lr=1e-3, batch_size=9, epochs=8, val_fraction=0.2).train(
        bdl.ChainStack(nn.Linear(1, 1), CHAINS), batches, recorder
    )
    kept, held_out = hold_out(50, 0.2, derive_seed("start", 0))
    assert recorder.validated == set(held_out.tolist())
    assert recorder.trained == set(kept.tolist())
    assert batches.state_dict() == {"epoch": 0, "index": 0} and len(batches.dataset) == 50


def test_groups_are_held_out_as_a_whole():
    recorder, groups = Recorder(), torch.arange(50) // 5
    AdamWStart(lr=1e-3, batch_size=9, epochs=8, val_fraction=0.25).train(
        bdl.ChainStack(nn.Linear(1, 1), CHAINS), numbered(), recorder, groups=groups
    )
    held = {item // 5 for item in recorder.validated}
    assert len(held) == 2 and recorder.validated == {item for item in range(50) if item // 5 in held}
    assert recorder.trained == set(range(50)) - recorder.validated


def test_validation_items_leave_all_training_items():
    recorder = Recorder()
    x = torch.arange(50.0, 60.0).unsqueeze(1)
    val = TensorSlices(x, x)
    AdamWStart(lr=1e-3, epochs=3).train(bdl.ChainStack(nn.Linear(1, 1), CHAINS), numbered(), recorder, val)
    assert recorder.trained == set(range(50)) and recorder.validated == set(range(50, 60))


def dropped(seed: int = 0, workers: bool = False) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The parameters of a stack with dropout that was trained, and torch's random state afterwards."""
    torch.manual_seed(seed + 5)
    stack = bdl.ChainStack(MLP((toys.D, 5, toys.K), dropout=0.5), 2)
    batches = WorkerBatches(toys.batches(2), 0) if workers else toys.batches(2)
    AdamWStart(epochs=2).train(stack, batches, LOSS)
    return list(stack.parameters()), torch.get_rng_state()


def test_training_repeats_to_the_bit_whatever_the_global_stream():
    one, state = dropped(seed=0)
    for other, _ in (dropped(seed=1), dropped(seed=0, workers=True)):
        assert all(map(torch.equal, one, other))
    torch.manual_seed(5)
    bdl.ChainStack(MLP((toys.D, 5, toys.K), dropout=0.5), 2)
    assert torch.equal(state, torch.get_rng_state())


def test_frozen_parameters_stay():
    net = MLP((toys.D, 5, toys.K))
    net[0].weight.requires_grad_(False)
    stack = bdl.ChainStack(net, CHAINS)
    before = [p.detach().clone() for p in stack.parameters()]
    AdamWStart(epochs=1).train(stack, toys.batches(CHAINS), LOSS)
    assert [torch.equal(b, p) for b, p in zip(before, stack.parameters(), strict=True)] == [True, False, False, False]


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"lr": 0.0}, "start.lr must be > 0, got 0.0"),
        ({"weight_decay": -1.0}, "start.weight_decay must be from 0 to 1 / start.lr, got -1.0"),
        ({"batch_size": 0}, "start.batch_size must be at least 1, got 0"),
        ({"epochs": 0}, "start.epochs must be at least 1, got 0"),
        ({"patience": 0}, "start.patience must be at least 1, got 0"),
        ({"val_fraction": 1.0}, "start.val_fraction must be in (0, 1), got 1.0"),
    ],
)
def test_values_out_of_range_are_refused(arguments, words):
    with pytest.raises(bdl.ConfigError) as error:
        AdamWStart(**arguments)
    assert words in str(error.value)


def test_too_few_items_to_hold_some_out_are_refused():
    with pytest.raises(bdl.ConfigError, match=r"start.val_fraction = 0.01 of 40 training items holds out none"):
        AdamWStart(val_fraction=0.01).train(bdl.ChainStack(nn.Linear(3, 3), 2), toys.batches(2), LOSS)


def test_a_member_that_diverged_is_named():
    stack = bdl.ChainStack(MLP((toys.D, 5, toys.K)), CHAINS)
    with torch.no_grad():
        next(stack.parameters())[1] = math.nan
    with pytest.raises(bdl.DivergedError, match=r"member 1 was never finite \(1 of 3 members\): lower start.lr"):
        AdamWStart(epochs=2).train(stack, toys.batches(CHAINS), LOSS)


def test_targets_outside_of_the_law_are_refused():
    x = torch.zeros(40, 1)
    with pytest.raises(bdl.ConfigError, match="no counts"):
        AdamWStart().train(bdl.ChainStack(nn.Linear(1, 1), 2), TensorBatches(x, x - 1, 10, chains=2), bdl.PoissonNLL())
