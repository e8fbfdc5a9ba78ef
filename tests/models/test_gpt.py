"""The small GPT: it sees no later token, and chains of it run in every way. Tests of `bdl.contrib.language.gpt`."""

import math

import pytest
import torch

import bdl
from bdl.models import GPT

torch.manual_seed(0)
TOKENS = torch.randint(11, (3, 8))


def test_an_output_depends_on_no_later_token():
    net, changed = GPT(11, 8, width=16, heads=2).eval(), TOKENS.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    before, after = net(TOKENS), net(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert bool((before[:, 5:] != after[:, 5:]).any(-1).all())  # and on all those before it


def test_it_begins_at_predictions_that_are_all_alike():
    """Logits of std 0.02 sqrt(width) (Radford et al. 2019): the loss is log K to a few per cent."""
    loss = bdl.CategoricalNLL()(GPT(11, 8)(TOKENS), TOKENS.roll(-1, 1)).mean()
    assert loss.item() == pytest.approx(math.log(11), rel=0.05)


@pytest.mark.parametrize("method", ["loop", "vmap"])
def test_chains_are_the_networks_one_by_one(method):
    stack = bdl.ChainStack(GPT(11, 8, width=16, heads=2), 2, method=method, shared=True).eval()
    outputs = stack(TOKENS)
    for c in range(2):
        one = GPT(11, 8, width=16, heads=2).eval()
        one.load_state_dict({name: tensor[c] for name, tensor in stack.net.state_dict().items()})
        torch.testing.assert_close(outputs[c], one(TOKENS))
    assert not torch.allclose(outputs[0], outputs[1])
