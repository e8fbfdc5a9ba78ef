"""Tests of `bdl.contrib.influence.covariance`: influence against exact values, and in blocks.

The posterior of a linear regression is normal, so that the expected loss of a test item is a formula in the weights of
the training items. Autograd differentiates it: the infinitesimal jackknife, which shares nothing with the covariances.
"""

import pytest
import torch
from linear_run import D64, NOISE, TEST, TRAIN, N, law, store
from torch import nn

import bdl
from bdl.contrib.influence import covariance
from bdl.data import TensorSlices
from bdl.errors import ConfigError

Z = 5.0  # standard errors, of 280 values


def jackknife(t: float) -> torch.Tensor:
    """(TESTS, N) -d E[loss of a test item] / d(weight of a row), by autograd."""

    def expected(weights: torch.Tensor) -> torch.Tensor:
        mean, spread = law(weights, t)
        x, y = TEST
        return ((x @ mean - y)[:, 0].square() + ((x @ spread) * x).sum(1)) / (2 * NOISE**2)

    return -torch.autograd.functional.jacobian(expected, torch.ones(N, dtype=D64))


@pytest.fixture(scope="module")
def posterior(tmp_path_factory):
    return store(tmp_path_factory.mktemp("normal"))


def errors_away(found: covariance.Influence, exact: torch.Tensor) -> float:
    return float(((found.values - exact) / found.std_error).abs().max())


def test_it_is_the_infinitesimal_jackknife_of_a_linear_regression(posterior, tmp_path):
    """At T = 1 and at T = 0.25, within Z standard errors between 150 chains, which are as large as they must be.

    Negative controls: the jackknife at the other temperature, and with rows in another order, are far away.
    """
    for t, drawn in ((1.0, posterior), (0.25, store(tmp_path, 0.25))):
        found = drawn.influence(TensorSlices(*TRAIN), TensorSlices(*TEST))
        assert errors_away(found, jackknife(t)) < Z
        assert errors_away(found, jackknife(1.25 - t)) > 10 < errors_away(found, jackknife(t).roll(1, 1))
        away = (found.values - jackknife(t)) / found.std_error
        assert 0.6 < float(away.square().mean()) < 2.0
    assert found.shown()[0] == "Influence of 40 training items on 7"


def test_modes_that_chains_do_not_leave_do_not_enter(posterior, tmp_path):
    """Chains around other places: the mean of the covariances around each, and not what lies between them."""
    moved = store(tmp_path, shift=3.0, chains=3, files=30)
    found = moved.influence(TensorSlices(*TRAIN), TensorSlices(*TEST))
    x, y = (torch.cat([a, b]) for a, b in zip(TRAIN, TEST, strict=True))
    theta = torch.stack([s.tensors["weight"][0] for s in moved.stream()]).unflatten(0, (-1, 3))  # (files, chains, D)
    loss = (theta @ x.T - y.T).square() / (2 * NOISE**2)
    of_chains = torch.stack([loss[:, c].T.cov()[N:, :N] for c in range(3)])
    torch.testing.assert_close(found.values.double(), of_chains.mean(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.std_error.double(), of_chains.std(0) / 3**0.5, rtol=1e-4, atol=1e-4)
    pooled = loss.flatten(0, 1).T.cov()[N:, :N]
    assert not torch.allclose(found.values.double(), pooled, rtol=0.5)  # what would be wrong


def test_blocks_of_any_size_are_the_whole(posterior, monkeypatch):
    """And no more than a block of losses is held at once."""
    whole = posterior.influence(TensorSlices(*TRAIN), TensorSlices(*TEST))
    sizes = []
    plain = covariance.losses
    monkeypatch.setattr(covariance, "losses", lambda *args: (found := plain(*args), sizes.append(found[1].numel()))[0])
    monkeypatch.setattr(covariance, "LOSSES", 5 * posterior.samples)
    monkeypatch.setattr(covariance, "TEST_ROWS", 3)
    loaders = TensorSlices(*TRAIN, batch_size=7), TensorSlices(*TEST, batch_size=2)
    parts = posterior.influence(*loaders)
    assert max(sizes) <= 5 * posterior.samples and len(sizes) == 3 * (1 + 8)
    torch.testing.assert_close(parts.values, whole.values, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(parts.std_error, whole.std_error, rtol=1e-5, atol=1e-6)


def test_an_item_with_a_weight_counts_as_often():
    """The loss of a row of weight 2 is that of the row twice; elements of an item are averaged, as in training."""
    outputs, y = torch.randn(4, 5, 2), torch.randint(2, (5,))
    weights = torch.tensor([1.0, 2.0, 1.0, 3.0, 1.0], dtype=D64)
    plain = covariance.item_losses(bdl.CategoricalNLL(), outputs, y)
    law = bdl.likelihoods.WeightedNLL(bdl.CategoricalNLL())
    weighted = covariance.item_losses(law, outputs, bdl.likelihoods.with_weights(y, weights))
    torch.testing.assert_close(weighted, plain * weights)
    tokens, labels = torch.randn(4, 5, 3, 6), torch.randint(6, (5, 3))
    labels[0, 1:] = -100
    found = covariance.item_losses(
        bdl.likelihoods.likelihood_of(nn.CrossEntropyLoss(), 6, 3), tokens.movedim(3, 2), labels
    )
    each = -tokens.double().log_softmax(-1)[:, 0, 0, labels[0, 0]]
    torch.testing.assert_close(found[:, 0], each)


@pytest.mark.parametrize(
    "settings, words",
    [
        (dict(files=1), "at least 2 networks of each chain, and chain 0 has 1"),
        (dict(temperature=lambda step: 1.0 + step), "one temperature above 0, and those of chain 0 have 1, 2, 3"),
        (dict(temperature=lambda step: 0.0), "one temperature above 0"),
    ],
)
def test_samples_of_no_posterior_are_refused(tmp_path, settings, words):
    drawn = store(tmp_path, **({"chains": 2, "files": 4} | settings))
    with pytest.raises(ConfigError, match=words):
        drawn.influence(TensorSlices(*TRAIN), TensorSlices(*TEST))


def test_one_chain_has_no_standard_error_and_items_need_labels(tmp_path):
    drawn = store(tmp_path, chains=1, files=5)
    found = drawn.influence(TensorSlices(*TRAIN), TensorSlices(*TEST))
    assert found.values.isfinite().all() and found.std_error.isnan().all()
    with pytest.raises(ConfigError, match="needs a loader of"):
        drawn.influence(TensorSlices(*TRAIN), TEST[0])


@pytest.mark.slow
def test_changed_labels_are_found():
    """In 500 images of digits: by a row's influence on itself, and at the top of the rows that harm clean images.

    Beside the same question asked of one network's gradients. Negative control: a score that knows nothing.
    """
    from experiments import influence

    found = influence.digits(0)
    assert found["own"] > max(0.98, found["gradient_own"]) and abs(found["chance"] - 0.5) < 0.15
    assert all(image["label"] != image["true"] for image in found["harmful"][:6])


@pytest.mark.slow
def test_rows_that_are_left_out_change_what_influence_says(monkeypatch):
    """On 200 rows, sampled anew without each; the changes of other rows are a negative control."""
    from experiments import influence

    monkeypatch.setattr(influence, "STEPS", 500)
    monkeypatch.setattr(influence, "BURN_IN", 100)
    rows = influence.left_out()
    change, said = torch.tensor(rows["change"]), torch.tensor(rows["influence"])
    of_pairs = lambda change: float(torch.corrcoef(torch.stack([change, said]))[0, 1])  # noqa: E731
    assert of_pairs(change) > 0.8 and abs(of_pairs(change.roll(1))) < 0.3
