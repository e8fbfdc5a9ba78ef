"""Tests of `bdl.posterior.mixture`, `.normal_mixture`, `.stored_outputs`, `.outputs`, `.value_evaluation`, `.metrics`.

Predictions of numbers and of labels, against scipy and against every network by hand.
"""

import math
import tempfile
from pathlib import Path

import pytest
import scipy.stats as st
import torch
import toys
from by_hand import NUMBERS_X as X
from by_hand import NUMBERS_Y as VALUES
from by_hand import mixture_of
from contaminated import Contaminated
from scipy import integrate, optimize
from torch import nn
from torch.func import functional_call

import bdl
from bdl.data import TensorSlices
from bdl.errors import BdlWarning, ConfigError, StoreError
from bdl.posterior import mixture as mixture_module
from bdl.posterior import stored_outputs
from bdl.posterior.metrics import QUANTILE_GRID, shares_below, value_metrics
from bdl.posterior.mixture import PredictiveMixture
from bdl.posterior.normal_mixture import NormalMixture
from bdl.posterior.prediction import of_mixture
from bdl.posterior.store import SampleStore
from bdl.posterior.stored_outputs import StoredOutputs
from bdl.posterior.value_evaluation import ValueEvaluation
from bdl.schedules import EveryStep

D64 = torch.float64
S, N, K = 5, 4, 2
WEIGHTS = torch.tensor([1.0, 2.0, 0.0, 4.0, 3.0])
LAWS = {
    bdl.GaussianNLL(0.3): lambda a: st.norm(a, 0.3),
    bdl.HeteroscedasticNLL(): lambda a, b: st.norm(a, (b / 2).exp()),
    bdl.HeteroscedasticNLL("softplus"): lambda a, b: st.norm(a, b.exp().log1p()),
    bdl.HeteroscedasticNLL(outliers=0.05): lambda a, b: Contaminated(a, (b / 2).exp(), 0.05),
    bdl.StudentTNLL(5.0): lambda a, b: st.t(5, a, b.exp()),
    bdl.PoissonNLL(): lambda a: st.poisson(a.exp()),
    bdl.NegativeBinomialNLL(): lambda a, b: st.nbinom((-b).exp(), 1 / (1 + (a + b).exp())),
}


def make(likelihood, weights=WEIGHTS, shift: float = 0.0):
    """(prediction, frozen laws (S, N, K) of scipy, normalised weights as an array (S, 1, 1)); shift: of the outputs."""
    generator = torch.Generator().manual_seed(2)
    each = torch.randn(S, N, likelihood.num_outputs(K), generator=generator) + shift
    outputs = StoredOutputs()
    outputs.add(each[:2])
    outputs.add(each[2:])
    law = LAWS[likelihood](*each.double().split(K, -1))
    return (
        of_mixture(PredictiveMixture(outputs, likelihood, weights)),
        law,
        (weights / weights.sum()).double().view(-1, 1, 1),
    )


def targets(likelihood) -> torch.Tensor:
    y = torch.randn(N, K, generator=torch.Generator().manual_seed(3), dtype=D64)
    return (y.abs() * 3).floor() if likelihood.counts else y


@pytest.fixture(params=LAWS, ids=repr)
def likelihood(request):
    return request.param


def test_moments_follow_the_law_of_total_variance(likelihood):
    prediction, law, w = make(likelihood)
    means, variances = torch.as_tensor(law.mean()), torch.as_tensor(law.var()).expand(S, N, K)
    mean = (w * means).sum(0)
    total = (w * (variances + means.square())).sum(0) - mean.square()
    torch.testing.assert_close(prediction.mean.double(), mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(prediction.std.double(), total.sqrt(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(prediction.aleatoric.double(), (w * variances).sum(0).sqrt(), rtol=1e-5, atol=1e-6)
    squares = prediction.aleatoric.square() + prediction.epistemic.square()
    torch.testing.assert_close(squares, prediction.std.square(), rtol=1e-5, atol=1e-6)


def test_densities_and_quantiles_are_those_of_the_mixture(likelihood):
    prediction, law, w = make(likelihood)
    y = targets(likelihood)
    p = torch.as_tensor(law.pmf(y) if likelihood.counts else law.pdf(y))  # (S, N, K)
    expected = (w.squeeze(-1) * p.prod(-1)).sum(0).log()
    torch.testing.assert_close(prediction.log_density(y).double(), expected, rtol=1e-5, atol=1e-6)
    for q in (0.05, 0.5, 0.975):
        quantile = prediction.quantile(q).double()
        at = lambda y: (w * torch.as_tensor(law.cdf(y))).sum(0)  # noqa: E731
        if likelihood.counts:  # the smallest whole number at which the distribution function reaches q
            assert bool((at(quantile) >= q).all() and (at(quantile - 1) < q).all())
        else:
            torch.testing.assert_close(at(quantile), torch.full((N, K), q, dtype=D64), atol=1e-5, rtol=0)
    low, high = prediction.interval(0.9)
    both = prediction.quantile([0.05, 0.95])
    torch.testing.assert_close(torch.stack([low, high]), both)


def test_crps_is_the_integral_of_the_squared_difference(likelihood):
    """∫ (F(x) - 1{x >= y})² dx by scipy; for other laws than the normal within five standard errors of 1,000 draws."""
    prediction, law, w = make(likelihood)
    y = targets(likelihood)
    scores = prediction.crps(y)
    for n, k in ((0, 0), (3, 1)):
        f = lambda x: float((w * torch.as_tensor(law.cdf(x))).sum(0)[n, k])  # noqa: E731, B023
        if likelihood.counts:
            expected = sum((f(j) - float(j >= y[n, k])) ** 2 for j in range(400))
        else:
            at = float(y[n, k])
            parts = [integrate.quad(lambda x, s=s: (f(x) - s) ** 2, a, b, limit=200)[0]  # noqa: B023
                     for a, b, s in ((-60, at, 0), (at, 60, 1))]  # fmt: skip
            expected = sum(parts)
        exact = isinstance(likelihood, bdl.GaussianNLL | bdl.HeteroscedasticNLL)
        error = 1e-5 if exact else 5 * float(prediction.std[n, k]) / math.sqrt(1000)
        assert float(scores[n, k]) == pytest.approx(expected, abs=error)


def crps_by_pairs(means: torch.Tensor, stds: torch.Tensor, y: torch.Tensor | float) -> torch.Tensor:
    """(n, k) E|Y - y| - E|Y - Y'| / 2 by scipy, of equally many networks N(means, stds²), each (S, n, k)."""
    distance = lambda m, s: torch.as_tensor(m * (2 * st.norm.cdf(m / s) - 1) + 2 * s * st.norm.pdf(m / s))  # noqa: E731
    pairs = [distance(means - m, (stds.square() + s.square()).sqrt()).mean(0) for m, s in zip(means, stds, strict=True)]
    return distance(means - y, stds).mean(0) - torch.stack(pairs).mean(0) / 2


def test_crps_is_exact_where_few_networks_are_very_narrow():
    """Long tails, in which an error of the distribution function would add up to 1e-4."""
    random = torch.Generator().manual_seed(0)
    outputs = torch.randn(1000, 3, 2, generator=random, dtype=torch.float64)
    outputs[:20, :, 1] -= 2
    mixture, held = mixture_of(outputs, bdl.HeteroscedasticNLL()), outputs.float().double()
    expected = crps_by_pairs(held[..., :1], (held[..., 1:] / 2).exp(), 0.0)
    torch.testing.assert_close(mixture.crps(torch.zeros(3)), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("apart", [0.1, 30.0], ids=["together", "far apart"])
@pytest.mark.parametrize("widths", [0.3, 2.0, 4.0], ids="widths of e^±{}".format)
@pytest.mark.parametrize("weights", ["equal", "unequal"])
def test_the_quadrature_of_crps_is_all_pairs_also_where_networks_differ_in_width(apart, widths, weights, monkeypatch):
    """Its steps are those of the bulk: some laws are e^8 times as narrow as others, and some far away."""
    generator = torch.Generator().manual_seed(0)
    means, log_var = apart * torch.randn(60, N, generator=generator), widths * torch.randn(60, N, generator=generator)
    w = torch.ones(60) if weights == "equal" else 0.01 + torch.rand(60, generator=generator)
    mixture = mixture_of(torch.stack([means, log_var], -1), bdl.HeteroscedasticNLL(), w)
    y = torch.zeros(N, 1, dtype=D64)
    monkeypatch.setattr("bdl.posterior.normal_mixture.PAIR", 1e4)
    by_quadrature = mixture.crps(y)
    monkeypatch.setattr("bdl.posterior.normal_mixture.PAIR", 0)
    std = sum(mixture.moments()[1:]).sqrt()
    torch.testing.assert_close((by_quadrature - mixture.crps(y)) / std, torch.zeros(N, 1, dtype=D64), atol=2e-5, rtol=0)


def test_crps_of_an_item_does_not_depend_on_the_items_beside_it():
    """Items of about as many steps are taken together: 5e-8 is rounding, and other steps change 2e-7."""
    generator = torch.Generator().manual_seed(0)
    means = torch.linspace(0.1, 4, 40)[:, None] * torch.randn(60, 40, 1, generator=generator, dtype=D64)
    stds = 0.7 + 0.3 * torch.rand(60, 40, 1, generator=generator, dtype=D64)
    mixture = lambda items: NormalMixture(means[:, items], stds[:, items], torch.full((60,), 1 / 60, dtype=D64))  # noqa: E731
    alone = torch.cat([mixture([i]).crps(torch.zeros(1, 1)) for i in range(40)])
    torch.testing.assert_close(mixture(slice(None)).crps(torch.zeros(40, 1)), alone, atol=5e-8, rtol=0)


def test_the_quadrature_of_crps_calls_the_distribution_function_for_many_steps_at_once(monkeypatch):
    """A call of torch for 60 networks and one item takes longer than its arithmetic."""
    calls, erf_ = [], torch.Tensor.erf_
    monkeypatch.setattr(torch.Tensor, "erf_", lambda z: calls.append(z.numel()) or erf_(z))
    means = torch.randn(60, 20, 1, generator=torch.Generator().manual_seed(0), dtype=D64)
    law = NormalMixture(means, torch.full_like(means, 0.1), torch.full((60,), 1 / 60, dtype=D64))
    together = law.crps(torch.zeros(20, 1))
    assert len(calls) < 8 and max(calls) <= 2**16  # of the cache
    monkeypatch.setattr("bdl.posterior.normal_mixture.IN_CACHE", 60)
    torch.testing.assert_close(law.crps(torch.zeros(20, 1)), together, atol=5e-8, rtol=0)
    assert len(calls) > 20 * 32 and max(calls[8:]) == 60  # one step of one item


def test_draws_have_the_law_of_the_mixture_and_one_network_each(likelihood):
    """Kolmogorov's distance of 4,000 draws is above 1.95 / sqrt(4000) once in a thousand times."""
    prediction, law, w = make(likelihood)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    draws = prediction.draw(4000, seed=1)
    assert torch.equal(torch.get_rng_state(), before) and draws.shape == (4000, N, K)
    assert torch.equal(prediction.draw(4000, seed=1), draws)
    y = targets(likelihood)
    for shift in (-1.0, 0.0, 1.0):
        share = (draws <= y + shift).double().mean(0)
        exact = (w * torch.as_tensor(law.cdf(y + shift))).sum(0)
        assert float((share - exact).abs().max()) < 1.95 / math.sqrt(4000)


def test_draws_of_two_items_come_from_the_same_network():
    """Two networks, far apart: both items of a draw lie near one of them."""
    far = torch.tensor([0.0, 100.0]).view(2, 1, 1).expand(2, 2, 1)
    draws = of_mixture(mixture_of(far, bdl.GaussianNLL(1.0))).draw(200)
    near = draws.squeeze(-1) > 50
    assert torch.equal(near[:, 0], near[:, 1]) and 60 < int(near[:, 0].sum()) < 140


@pytest.mark.parametrize("spread", [1e-3, 30.0])
def test_quantiles_far_from_zero_and_between_far_components(spread):
    """Means near 1e4 with a spread of 1e-3, and components 30 standard deviations apart."""
    means, std = (1e4 + spread * torch.arange(3.0, dtype=D64)).float(), 1e-3 if spread < 1 else 1.0
    prediction, stored = mixture_of(means.view(3, 1, 1), bdl.GaussianNLL(std)), means.double().numpy()
    for q in (0.01, 0.4, 0.99):
        cdf = lambda x: st.norm(stored, std).cdf(x).mean() - q  # noqa: E731, B023
        exact = optimize.brentq(cdf, 9e3, 1.1e4, xtol=1e-12)
        assert float(prediction.quantile(q)) == pytest.approx(exact, abs=1e-4 * std)


@pytest.mark.parametrize("q", [1e-6, 1 - 1e-6])
def test_quantiles_in_the_tails(q):
    prediction, law, w = make(bdl.HeteroscedasticNLL())
    at = lambda y: (w * torch.as_tensor(law.cdf(y) if q < 0.5 else law.sf(y))).sum(0)  # noqa: E731
    reached = at(prediction.mixture.quantile(q))
    torch.testing.assert_close(reached, torch.full((N, K), 1e-6, dtype=D64), rtol=2e-3, atol=0)


def test_quantiles_of_counts_beyond_whole_numbers_of_double_end():
    """At a rate of exp(60) neighbouring doubles are 2**34 apart, and the law is exp(30) wide."""
    quantile = float(mixture_of(torch.full((1, 1, 1), 60.0), bdl.PoissonNLL()).quantile(0.9))
    assert quantile == pytest.approx(math.exp(60), rel=1e-10)


def test_a_scale_of_zero_is_a_point_to_crps():
    outputs = torch.tensor([[[0.0, -4000.0]], [[1.0, -4000.0]]])
    crps = mixture_of(outputs, bdl.HeteroscedasticNLL()).crps(torch.tensor([3.0]))
    assert float(crps) == pytest.approx(2.5 - 0.25)  # E|Y - 3| - E|Y - Y'| / 2


def test_one_item_that_needs_all_pairs_does_not_change_others():
    """The second item has scales of .01 to 1, which the quadrature of 40 networks cannot resolve."""
    random = torch.Generator().manual_seed(0)
    means = torch.randn(40, 3, generator=random)
    log_var = torch.zeros(40, 3)
    log_var[:, 1] = torch.linspace(-9, 0, 40)
    outputs, y = torch.stack([means, log_var], -1), torch.tensor([0.3, -0.2, 1.0])
    together, apart = (
        mixture_of(outputs[:, items], bdl.HeteroscedasticNLL()).crps(y[items]).flatten()
        for items in ([0, 1, 2], [0, 2])
    )
    exact = crps_by_pairs(means, (0.5 * log_var).exp(), y)
    torch.testing.assert_close(together, exact, atol=2e-5, rtol=0, check_dtype=False)
    assert torch.equal(together[[0, 2]], apart)


def test_a_scale_that_overflows_leaves_the_other_items_alone():
    mixture = mixture_of(torch.tensor([[[0.0, 0.0], [0.0, 2000.0]]]).expand(30, 2, 2), bdl.HeteroscedasticNLL())
    assert float(mixture.quantile(0.5)[0]) == pytest.approx(0, abs=1e-5)
    assert float(mixture.crps(torch.zeros(2))[0]) == pytest.approx(
        2 * st.norm.pdf(0) - 1 / math.sqrt(math.pi), abs=1e-5
    )


def test_rescaling_undoes_a_standardisation(likelihood):
    prediction, _, _ = make(likelihood)
    if likelihood.counts:
        with pytest.raises(ConfigError, match="PoissonNLL|NegativeBinomialNLL.* do not rescale"):
            prediction.rescaled(1.0, 2.0)
        return
    shift, scale = torch.tensor([10.0, -3.0]), torch.tensor([2.0, 0.5])
    moved = prediction.rescaled(shift, scale).rescaled(1.0, 3.0)  # y -> 1 + 3 (shift + scale y)
    y = targets(likelihood)
    there = 1 + 3 * (shift + scale * y)
    torch.testing.assert_close(moved.mean, 1 + 3 * (shift + scale * prediction.mean).double())
    for name in ("std", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(moved, name), 3 * scale.double() * getattr(prediction, name))
    torch.testing.assert_close(moved.quantile(0.3), 1 + 3 * (shift + scale * prediction.quantile(0.3)).double())
    torch.testing.assert_close(moved.draw(3), 1 + 3 * (shift + scale * prediction.draw(3)).double())
    torch.testing.assert_close(moved.cdf(there), prediction.cdf(y))
    torch.testing.assert_close(moved.crps(there), 3 * scale * prediction.crps(y), rtol=1e-4, atol=1e-5)
    change = (3 * scale).log().sum()
    torch.testing.assert_close(moved.log_density(there), prediction.log_density(y) - change, rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError, match="scale must be > 0"):
        prediction.rescaled(0.0, 0.0)


def test_chunks_and_files_do_not_change_the_numbers(likelihood, monkeypatch):
    whole, _, _ = make(likelihood)
    y = targets(likelihood)
    files, open_file = [], tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: files.append(open_file()) or files[-1])
    monkeypatch.setattr(stored_outputs, "OUTPUTS_IN_MEMORY", 100)
    monkeypatch.setattr(mixture_module, "CHUNK_OF_OUTPUTS", 1)
    parts, _, _ = make(likelihood)
    assert len(files) == 1
    for name in ("mean", "std", "aleatoric", "epistemic"):
        assert torch.equal(getattr(parts, name), getattr(whole, name))
    assert torch.equal(parts.quantile(0.2), whole.quantile(0.2))
    assert torch.equal(parts.log_density(y), whole.log_density(y))


@pytest.mark.parametrize("shape", [(), (K,), (N,), (K, N)])
def test_targets_are_never_repeated_to_fit(shape):
    prediction, _, _ = make(bdl.GaussianNLL(0.3))
    for score in (prediction.log_density, prediction.cdf, prediction.crps):
        with pytest.raises(ConfigError, match=r"do not fit a prediction of shape \(4, 2\)"):
            score(torch.zeros(shape))


@pytest.mark.parametrize("q", [0.0, 1.0, -1.0, math.nan])
def test_probabilities_outside_their_range_are_refused(q):
    prediction, _, _ = make(bdl.GaussianNLL(0.3))
    with pytest.raises(ConfigError, match="0 < q < 1"):
        prediction.quantile(q)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        prediction.interval(q)


def test_scores_against_formulas_written_out():
    prediction, law, w = make(bdl.HeteroscedasticNLL())
    y = targets(bdl.HeteroscedasticNLL())
    scores = value_metrics(prediction, y)
    mean, std = prediction.mean.double(), prediction.std.double()
    low, high = prediction.interval(0.5)
    expected = {
        "rmse": (mean - y).square().mean().sqrt(),
        "nll": -(w.squeeze(-1) * torch.as_tensor(law.pdf(y)).prod(-1)).sum(0).log().mean(),
        "nll_normal": -torch.as_tensor(st.norm(mean, std).logpdf(y)).sum(-1).mean(),
        "crps": prediction.crps(y).mean(),
        "coverage_50": ((y >= low) & (y <= high)).double().mean(),
        "width_50": (high - low).mean(),
    }
    for name, value in expected.items():
        assert scores[name] == pytest.approx(float(value), rel=1e-5), name


@pytest.mark.parametrize("likelihood", [bdl.HeteroscedasticNLL(), bdl.PoissonNLL()], ids=repr)
def test_targets_from_the_law_itself_are_calibrated(likelihood):
    """2,000 items: a share deviates by at most 4 standard errors; targets that are too wide are far off."""
    outputs = torch.randn(3, 2000, likelihood.num_outputs(1), generator=torch.Generator().manual_seed(0)) + 1
    prediction = of_mixture(mixture_of(outputs, likelihood))
    # Each item from a network of its own: draws of one network for all items would share its error
    y = torch.stack([prediction.draw(1, seed=s)[0, s::50] for s in range(50)], 1).flatten(0, 1)
    q = torch.tensor(QUANTILE_GRID, dtype=D64)
    assert float((shares_below(prediction, y, q) - q).abs().max()) < 4 * math.sqrt(0.25 / 2000)
    scores = value_metrics(prediction, y)
    assert scores["quantile_error"] < 0.03
    wide = prediction.mean + 3 * (y - prediction.mean)
    far = wide.round().clamp_min(0) if likelihood.counts else wide
    assert value_metrics(prediction, far)["quantile_error"] > 0.1


def outputs_of_all(folder, net) -> torch.Tensor:
    """(files, chains, n, K) by hand."""
    store = SampleStore(folder)
    files = [store.read(r) for r in store.records()]
    each = [functional_call(net, {k: v[c] for k, v in tensors.items()}, (X,)) for tensors in files for c in (0, 1)]
    return torch.stack(each).detach().unflatten(0, (-1, 2))


def test_a_run_predicts_numbers_with_its_own_likelihood(regression):
    folder, net, _ = regression
    outputs = outputs_of_all(folder, net).flatten(0, 1).double()
    prediction = bdl.Posterior.load(folder, net).predict(X)
    assert isinstance(prediction, bdl.ValuePrediction)
    mean, variance = outputs[..., :1], outputs[..., 1:].exp()
    total = variance.mean(0) + mean.var(0, correction=0)
    torch.testing.assert_close(prediction.mean.double(), mean.mean(0), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(prediction.std.double(), total.sqrt(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(bdl.Posterior.load(folder, net).as_module()(X), prediction.mean)


def test_one_sample_and_the_averages_against_hand_computed_ones(regression):
    folder, net, average = regression
    outputs = outputs_of_all(folder, net).double()  # (files, chains, n, 2)
    evaluation = bdl.Posterior.load(folder, net).evaluate(TensorSlices(X, VALUES))
    metrics = evaluation.metrics()
    log_p = -bdl.HeteroscedasticNLL()(outputs, VALUES)  # (files, chains, n)
    mixed = lambda logs: -(logs.logsumexp(0) - math.log(len(logs))).mean().item()  # noqa: E731
    rmse = lambda mean: (mean - VALUES).square().mean().sqrt().item()  # noqa: E731
    means = outputs[..., :1]
    expected = {
        "one_sample/nll": -log_p[-1].mean().item(),
        "chain_bma/nll": (mixed(log_p[:, 0]) + mixed(log_p[:, 1])) / 2,
        "bma/nll": mixed(log_p.flatten(0, 1)),
        "one_sample/rmse": (rmse(means[-1, 0]) + rmse(means[-1, 1])) / 2,
        "chain_bma/rmse": (rmse(means[:, 0].mean(0)) + rmse(means[:, 1].mean(0))) / 2,
        "bma/rmse": rmse(means.flatten(0, 1).mean(0)),
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    assert evaluation.curve.samples == [2, 4, 6, 8]
    ends = (evaluation.curve.nll, evaluation.curve.chain_nll, evaluation.curve.score, evaluation.curve.chain_score)
    names = ("bma/nll", "chain_bma/nll", "bma/rmse", "chain_bma/rmse")
    assert [curve[-1] for curve in ends] == pytest.approx([expected[name] for name in names], rel=1e-4)
    torch.testing.assert_close(torch.as_tensor(evaluation.log_probs[1, 2]), log_p[2, 1], atol=1e-4, rtol=1e-4)
    # The callback's average during training is the same
    assert average.count == 8
    names = ("rmse", "nll", "nll_normal")
    assert [average.metrics[k] for k in names] == pytest.approx([metrics[f"bma/{k}"] for k in names], rel=1e-4)


def test_the_average_of_numbers_survives_a_checkpoint(regression):
    _, _, average = regression
    state = average.state_dict()
    again = type(average.average)(bdl.HeteroscedasticNLL(), VALUES)
    again.load_state_dict(state)
    assert again.scores() == average.metrics and again.count == 8


def test_several_labels_are_predicted_each_by_itself(tmp_path):
    """Also one label, which two classes need: its numbers are those of CategoricalNLL on (0, logit)."""
    net = bdl.models.MLP((3, 4, 2))
    module, y = toys.module(net, 2, bdl.BernoulliNLL(), lr=0.05), (X[:, :2] > 0).long()
    callbacks = [bdl.CollectSamples(EveryStep(0, 2), tmp_path), bdl.ModelAverage(EveryStep(0, 2), TensorSlices(X, y))]
    toys.trainer(tmp_path, 6, callbacks).fit(module, bdl.data.TensorBatches(X, y, 10, chains=2))
    posterior = bdl.Posterior.load(tmp_path, net)
    p = outputs_of_all(tmp_path, net).flatten(0, 1).double().sigmoid()  # (s, n, 2)
    prediction = posterior.predict(X)
    assert isinstance(prediction, bdl.LabelPrediction)
    entropy = lambda p: -(p * p.log() + (1 - p) * (1 - p).log())  # noqa: E731
    expected = {
        "probs": p.mean(0), "std": p.std(0, correction=0), "entropy": entropy(p.mean(0)),
        "aleatoric": entropy(p).mean(0), "epistemic": entropy(p.mean(0)) - entropy(p).mean(0),
    }  # fmt: skip
    for name, value in expected.items():
        torch.testing.assert_close(getattr(prediction, name).double(), value, atol=1e-5, rtol=1e-4)
    metrics = posterior.evaluate(TensorSlices(X, y)).metrics()
    nll = nn.functional.binary_cross_entropy(p.mean(0), y.double()).item()
    accuracy = ((p.mean(0) > 0.5) == y.bool()).double().mean().item()
    assert (metrics["bma/nll"], metrics["bma/accuracy"]) == pytest.approx((nll, accuracy), rel=1e-5)
    assert callbacks[1].metrics["nll"] == pytest.approx(nll, rel=1e-5)


def test_a_run_that_does_not_say_is_asked_about_in_one_line(regression, tmp_path):
    """A softmax of means and log variances would look like probabilities."""
    folder, net, _ = regression
    path = tmp_path / "run"
    (path / "samples").mkdir(parents=True)
    for file in (folder / "samples").iterdir():
        (path / "samples" / file.name).write_bytes(file.read_bytes())
    for manifest in folder.glob("manifest*.jsonl"):
        (path / manifest.name).write_bytes(manifest.read_bytes())
    target = bdl.SampleStore(folder).target()
    for loss in (None, "mymodule.my_loss", {"type": "torch.nn.modules.loss.L1Loss", "reduction": "mean"}):
        bdl.SampleStore(path).write_target({**target, "loss": loss})
        posterior = bdl.Posterior.load(path, net)
        for act in (lambda: posterior.predict(X), lambda: posterior.evaluate(TensorSlices(X, VALUES))):  # noqa: B023
            with pytest.raises(ConfigError, match="does not say what its outputs mean.*likelihood=bdl") as caught:
                act()
            assert "\n" not in str(caught.value)
        given = bdl.Posterior.load(path, net, likelihood=bdl.HeteroscedasticNLL())
        assert given.predict(X).mean.shape == (toys.N, 1)


def test_a_mean_squared_error_means_a_normal_law(tmp_path):
    module = toys.module(bdl.models.MLP((3, 4, 2)), 2, nn.MSELoss(), lr=0.01)
    y = X[:, :2]
    with pytest.warns(bdl.BdlWarning, match="MSELoss"):
        toys.trainer(tmp_path, 4, [bdl.CollectSamples(EveryStep(0, 2), tmp_path)]).fit(
            module, bdl.data.TensorBatches(X, y, 10, chains=2)
        )
    prediction = bdl.Posterior.load(tmp_path, bdl.models.MLP((3, 4, 2))).predict(X)
    assert isinstance(prediction, bdl.ValuePrediction)
    torch.testing.assert_close(prediction.aleatoric, torch.ones(toys.N, 2))  # two outputs: variance 2/2


def test_one_output_is_no_class_probability(tmp_path):
    module = toys.module(bdl.models.MLP((3, 4, 1)), None, bdl.GaussianNLL(1.0), lr=0.01)
    toys.trainer(tmp_path, 2, [bdl.CollectSamples(EveryStep(0, 2), tmp_path)]).fit(
        module, bdl.data.TensorBatches(X, VALUES, 10)
    )
    with pytest.warns(BdlWarning, match="sampled with GaussianNLL"):
        posterior = bdl.Posterior.load(tmp_path, bdl.models.MLP((3, 4, 1)), likelihood=bdl.CategoricalNLL())
    with pytest.raises(ConfigError, match="BernoulliNLL"):
        posterior.predict(X)


class Own(toys.L.LightningModule):
    """A module whose loss nobody sees."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 2)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return bdl.Sampler(self.net.named_parameters(), bdl.SGHMC(), num_data=toys.N, lr=0.1)


@pytest.mark.parametrize(
    ("likelihood", "y", "words"),
    [
        (None, VALUES, "does not know what the outputs of Own mean.*likelihood="),
        (bdl.CategoricalNLL(), torch.full((toys.N,), 7), "none of the 2 classes"),
        (bdl.HeteroscedasticNLL(), X, r"shape \(40, 3\), and a network with 2 outputs predicts 1 target"),
        (bdl.HeteroscedasticNLL(), VALUES * math.nan, "not finite"),
    ],
    ids=["unknown", "labels", "columns", "nan"],
)
def test_an_average_that_cannot_be_is_refused_before_first_step(tmp_path, likelihood, y, words):
    average = bdl.ModelAverage(EveryStep(1000, 2), TensorSlices(X, y), likelihood=likelihood)
    with pytest.raises(ConfigError, match=words):
        toys.trainer(tmp_path, 2, [average]).fit(Own(), bdl.data.TensorBatches(X, y, 10))


def test_the_importance_weighted_mixture_has_one_normalisation():
    """Chain 0 has weights .1 and .3, chain 1 has .8 and 0."""
    outputs, y = torch.randn(4, N, 1, generator=torch.Generator().manual_seed(5)), torch.zeros(N)
    evaluation = ValueEvaluation(bdl.GaussianNLL(0.5), y, 2)
    evaluation.add([0, 1], outputs[:2], torch.tensor([0.1, 0.8]))
    evaluation.add([0, 1], outputs[2:], torch.tensor([0.3, 0.0]))
    mean = (0.1 * outputs[0] + 0.8 * outputs[1] + 0.3 * outputs[2]) / 1.2
    torch.testing.assert_close(evaluation.bma_weighted.mean, mean)
    torch.testing.assert_close(evaluation.bma.mean, outputs.mean(0))
    assert evaluation.metrics()["bma_weighted/rmse"] == pytest.approx(mean.square().mean().sqrt().item(), rel=1e-5)
    alone = ValueEvaluation(bdl.GaussianNLL(0.5), y, 2)
    alone.add([0, 1], outputs[:2])
    assert alone.bma_weighted is None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a disk that is always full")
def test_a_full_disk_for_outputs_is_one_line(monkeypatch):
    monkeypatch.setattr(stored_outputs, "OUTPUTS_IN_MEMORY", 100)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: open("/dev/full", "w+b"))
    with pytest.raises(StoreError, match="^the outputs of 2 networks for 50 items do not fit .*No space left.*TMPDIR"):
        StoredOutputs().add(torch.zeros(2, 50, 1))
