"""A snapshot is plain values of the chains whose samples count, and a law is JSON."""

import json
from dataclasses import asdict, fields

import pytest
import torch
from closures import closure_of

import bdl
from bdl.errors import DivergedError
from bdl.posterior.index import Record
from bdl.snapshot import describe_target, per_chain

RATES = [0.1, 0.2, 0.3]


def stepped(steps: int = 3, **settings) -> bdl.Sampler:
    """The second stack of three chains on a normal law with N = 5."""
    theta = torch.tensor([[1.0], [2.0], [3.0]], requires_grad=True)
    sampler = bdl.Sampler([theta], bdl.SGLD(), num_data=5, lr=torch.tensor(RATES), chains=3, stack=1, **settings)
    closure = closure_of(sampler, lambda: 0.5 * theta.square().sum(1))
    sampler.full_loss = lambda: 0.5 * theta.detach().square().sum(1)
    for _ in range(steps):
        sampler.step(closure)
    return sampler


def test_a_snapshot_holds_the_numbers_of_every_chain():
    sampler = stepped()
    now = sampler.snapshot()
    assert (now.step, now.stack, now.rows, now.chains) == (3, 1, [0, 1, 2], [3, 4, 5])
    assert now.lr == pytest.approx(RATES) and now.temperature == 1.0
    theta = sampler.sampled[0].detach().double()[:, 0]
    assert now.energy_full == pytest.approx((5 * theta**2 / 2 + theta**2 / 2).tolist(), rel=1e-5)  # prior N(0, 1)
    assert sampler.snapshot(full_energy=False).energy_full is None and now.log_weight is None


def test_a_snapshot_is_plain_and_fills_a_record_but_for_store():
    now = stepped().snapshot()
    assert json.loads(json.dumps(asdict(now))) == asdict(now)
    of_store = {"energy_batch", "log_weight", "file", "bytes", "sha256", "format_version"}
    assert set(now.fields(cycle=2)) == {field.name for field in fields(Record)} - of_store
    assert now.fields(cycle=2)["cycle"] == 2


def test_only_the_first_rung_of_a_ladder_counts():
    exchange = bdl.Exchange(ladder=[1.0, 2.0, 4.0])
    now = stepped(exchange=exchange).snapshot()
    assert len(now.rows) == len(now.chains) == len(now.lr) == len(now.energy_full) == 1
    assert now.chains == [3 + now.rows[0]] and now.temperature == [1.0]


def test_a_state_that_is_not_finite_has_no_snapshot():
    sampler = stepped()
    sampler.chain.theta.fill_(torch.nan)
    with pytest.raises(DivergedError):
        sampler.snapshot()


def test_a_weight_is_that_of_the_full_energy_where_psi_reads_it():
    sampler = stepped(40, weighting=bdl.AdaptiveWeight(zeta=0.5, low=0.0, high=20.0, bins=5, energy="full"))
    now = sampler.snapshot()
    expected = sampler.log_weight_at(torch.tensor(now.energy_full, dtype=torch.float64))
    assert now.log_weight == expected.tolist() and any(now.log_weight)


def test_the_law_and_the_shapes_are_json():
    target = describe_target(stepped(), torch.nn.MSELoss(), {"w": torch.zeros(3, 4, 5)})
    assert json.loads(json.dumps(target)) == target
    assert target["shapes"] == {"w": [4, 5]} and target["num_data"] == 5 and target["injects_noise"]


@pytest.mark.parametrize(
    ("value", "chains", "expected"),
    [
        (2.0, 3, [2.0] * 3),
        (torch.tensor(2.0), 2, [2.0] * 2),
        (torch.tensor([1.0, 2.0]), 2, [1.0, 2.0]),
        (2.0, None, [2.0]),
    ],
)
def test_one_number_per_chain(value, chains, expected):
    assert per_chain(value, chains) == expected
