"""Tests of `bdl.identity` and `.frozen`.

Identities are plain values: equal for objects that mean the same, different for others, whatever `str` says.
"""

import functools
import json
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import bdl
from bdl.identity import code_of, identity


@pytest.mark.parametrize(
    "one, same, another",
    [
        (bdl.SGHMC(0.1), bdl.SGHMC(friction=0.1), bdl.SGHMC(0.2)),
        (bdl.SGHMC(0.1), bdl.SGHMC(0.1), bdl.BAOAB(0.1)),
        (bdl.SGLD([1.0, 2.0]), bdl.SGLD(torch.tensor([1.0, 2.0])), bdl.SGLD([1.0, 2.0 + 2**-20])),
        (bdl.SGHMC(grad_var=0.5), bdl.SGHMC(grad_var=0.5), bdl.SGHMC(grad_var="estimated")),
        (bdl.SGRLD(torch.cos), bdl.SGRLD(torch.cos), bdl.SGRLD(torch.sin)),
        (bdl.Gaussian([1.0, 2.0]), bdl.Gaussian((1.0, 2.0)), bdl.Gaussian([1.0, 2.5])),
        (bdl.Exchange((1, 2)), bdl.Exchange([1, 2]), bdl.Exchange((1, 3))),
        (bdl.ClipNorm(1.0), bdl.ClipNorm(1.0), bdl.ClipValue(1.0)),
        (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1)),
        (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(), nn.CrossEntropyLoss(weight=torch.ones(3))),
        (functools.partial(torch.pow, exponent=2), functools.partial(torch.pow, exponent=2), torch.pow),
    ],
    ids=[
        "friction",
        "dynamics",
        "tensor",
        "variance",
        "metric",
        "scales",
        "ladder",
        "clip",
        "smoothing",
        "weight",
        "partial",
    ],
)
def test_equal_objects_have_equal_identities_and_others_do_not(one, same, another):
    assert identity(one) == identity(same) != identity(another)
    assert json.loads(json.dumps(identity(one))) == identity(one)


def test_names_do_not_depend_on_where_a_file_lies():
    """What bdl defines is named after bdl alone, so that a checkpoint survives a file that moves."""

    @dataclass
    class Mine:
        x: int = 1

    assert identity(bdl.SGLD())["type"] == "bdl.SGLD"
    assert identity(Mine())["type"].startswith(__name__)


def test_a_checkpoint_of_another_preconditioner_is_refused():
    """Digit by digit, without a hash in any message."""
    saved = sampler(bdl.SGLD([1.0, 2.0])).state_dict()
    sampler(bdl.SGLD([1.0, 2.0])).load_state_dict(saved)
    with pytest.raises(bdl.ConfigError, match="saved with dynamics"):
        sampler(bdl.SGLD([1.0, 2.0000002])).load_state_dict(saved)


def sampler(dynamics: bdl.Dynamics) -> bdl.Sampler:
    return bdl.Sampler([nn.Parameter(torch.zeros(2))], dynamics, num_data=5, lr=0.1)


def scaled(factor):
    return lambda outputs, y: factor * (outputs - y).mean()


def test_a_function_is_told_by_what_it_does():
    """Two lambdas have one name. Places of lines are no part of it, and a list that grows meanwhile is none either."""
    seen = []
    one, same, other = (lambda o, y: o.sum() - y), (lambda o, y: o.sum() - y), (lambda o, y: o.sum() - 2 * y)
    grows = lambda o, y: seen.append(y) or o.sum()  # noqa: E731
    before = code_of(grows)
    seen.append(1)
    assert identity(one) == identity(other) and code_of(one) == code_of(same) != code_of(other)
    assert code_of(scaled(2.0)) == code_of(functools.partial(scaled(2.0))) != code_of(scaled(3.0))
    assert code_of(grows) == before
    assert code_of(nn.CrossEntropyLoss()) is None and code_of(max) is None
