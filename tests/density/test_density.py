"""Tests of `bdl.contrib.density.network`, `.ordered`, `.parameters` and `.sample`: densities of named parameters."""

import math

import numpy as np
import pytest
import torch
from densities import MODELS, eight_schools
from torch import Tensor
from torch.distributions import AffineTransform, Normal, constraints

import bdl
from bdl.contrib.density.network import Density
from bdl.contrib.density.ordered import ordered
from bdl.contrib.density.parameters import DensityPosterior
from bdl.contrib.density.sample import as_transform
from bdl.errors import BdlWarning, ConfigError

N, CHAINS = 1000, 32
Y = 2.0 + 1.5 * torch.randn(N, generator=torch.Generator().manual_seed(0))


def log_prior(p: dict[str, Tensor]) -> Tensor:
    return Normal(0.0, 1.0).log_prob(p["centre"])


def log_likelihood(p: dict[str, Tensor], y: Tensor) -> Tensor:
    return Normal(p["centre"], 1.5).log_prob(y)


NORMAL = dict(log_prior=log_prior, log_likelihood=log_likelihood, init={"centre": 2.0}, data=Y, batch_size=100)
SHORT = dict(steps=400, lr=0.1, chains=CHAINS, accelerator="cpu", dynamics=bdl.BAOAB(0.3))


def exact() -> tuple[float, float]:
    """Mean and standard deviation of the posterior of NORMAL."""
    precision = 1 + N / 1.5**2
    return float(Y.double().sum()) / 1.5**2 / precision, precision**-0.5


@pytest.fixture(scope="module")
def normal(tmp_path_factory) -> DensityPosterior:
    return bdl.sample_density(**NORMAL, run_dir=tmp_path_factory.mktemp("normal"), **SHORT)


@pytest.mark.parametrize("name", MODELS)
def test_rows_add_up_to_the_log_density_of_the_free_values(name: str):
    """The Jacobian comes from autograd here. It sees a missing one: without it the sums differ by a nat or more."""
    model = MODELS[name]()
    transforms = {k: as_transform(k, c) for k, c in model.constraints.items()}
    rows = len(model.data) if isinstance(model.data, Tensor) else len(model.data["y"])

    def terms(p: dict[str, Tensor], chosen: Tensor) -> tuple[Tensor, Tensor]:
        data = model.data[chosen] if isinstance(model.data, Tensor) else {k: v[chosen] for k, v in model.data.items()}
        return model.log_prior(p), model.log_likelihood(p, data)

    net = Density(terms, model.init, rows, transforms).network()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    free = {name: p.detach() for name, p in net.named_parameters()}
    parameters = {k: transforms[k](v) if k in transforms else v for k, v in free.items()}
    jacobian = 0.0
    for k, t in transforms.items():
        of_values = torch.autograd.functional.jacobian(t, free[k]).reshape(-1, free[k].numel())
        jacobian += float(torch.linalg.slogdet(of_values[: free[k].numel()])[1])  # a simplex has one number too many
    prior, items = terms(parameters, torch.arange(rows))
    halves = [net(half).sum() for half in torch.arange(rows).chunk(2)]
    torch.testing.assert_close(sum(halves).item(), float(items.sum() + prior) + jacobian, rtol=1e-5, atol=1e-3)
    assert not transforms or abs(jacobian) > 1e-2


def test_ordered_vectors_and_free_ones_are_the_same():
    transform = as_transform("means", ordered)
    u = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    x = transform(u)
    assert bool(ordered.check(x).all()) and not bool(ordered.check(x.flip(-1)).any())
    torch.testing.assert_close(transform.inv(x), u)


def test_batches_sample_the_posterior_of_a_mean(normal: DensityPosterior):
    """Of a normal mean all is known: the mean within 3 standard errors; the variance is that of the posterior times
    T_eff, within 20 %, which is 3 standard errors of a variance from 450 draws or fewer."""
    mean, std = exact()
    row, heat = normal.summary().loc["centre"], normal.metrics["t_eff"]
    assert abs(row["mean"] - mean) < 3 * row["mcse_mean"]
    assert heat > 1.4 and row["sd"] ** 2 == pytest.approx(std**2 * heat, rel=0.2)
    assert normal.verdict.outcome == "another temperature"


def test_the_verdict_is_on_parameters(normal: DensityPosterior):
    questions = dict(normal.verdict.answers)
    assert "Would another run of this budget find the same?" in questions
    assert "at 9 of 10 parameters" in questions["Would another run of this budget find the same?"]
    assert normal.metrics["parameters"] == 1 and "T_eff" in repr(normal)
    assert "predict" not in " ".join(check.words for check in normal.verdict.checks if check.name != "Temperature")


def test_the_same_call_returns_the_samples_and_other_data_are_refused(normal: DensityPosterior):
    run = normal.posterior.stores[0].run_dir
    again = bdl.sample_density(**NORMAL, run_dir=run, **SHORT)
    np.testing.assert_array_equal(again.draws()["centre"], normal.draws()["centre"])
    assert again.metrics.keys() == normal.metrics.keys()
    wider = {"centre": AffineTransform(0.0, 2.0)}
    for changed in (dict(data=Y + 1), dict(log_prior=lambda p: 2 * log_prior(p)), dict(constraints=wider)):
        with pytest.raises(ConfigError, match="holds another run: model"):
            bdl.sample_density(**{**NORMAL, **changed}, run_dir=run, **SHORT)


def test_a_longer_call_goes_on_to_the_bit(tmp_path):
    """A run of 20 steps that is called again with 40, and one of 40 steps."""
    short = {**SHORT, "keep": bdl.schedules.EveryStep(0, 5)}
    for steps in (20, 40):
        resumed = bdl.sample_density(**NORMAL, run_dir=tmp_path / "a", **{**short, "steps": steps})
    whole = bdl.sample_density(**NORMAL, run_dir=tmp_path / "b", **{**short, "steps": 40})
    np.testing.assert_array_equal(resumed.draws()["centre"], whole.draws()["centre"])


def test_draws_have_names_and_dimensions(tmp_path):
    model = eight_schools()
    start = lambda: {**model.init, "mu": torch.randn(())}  # noqa: E731
    about = dict(keep=bdl.schedules.EveryStep(0, 1), dims={"eta": ["school"]}, coords={"school": list("ABCDEFGH")})
    arguments = {**model.arguments(), "init": start, **about, "steps": 12, "chains": 2, "accelerator": "cpu"}
    found = bdl.sample_density(**arguments, batch_size=None, run_dir=tmp_path)
    tree = found.to_arviz()
    assert tree["posterior"]["eta"].dims == ("chain", "draw", "school")
    assert tree["posterior"]["eta"].sel(school="B").shape == (2, 12) and (tree["posterior"]["tau"] > 0).all()
    assert list(found.summary().index[:2]) == ["mu", "tau"] and found.summary().index[2] == "eta[A]"
    first = found.draws()["mu"][:, 0]
    assert abs(first[0] - first[1]) > 0.1  # chains begin where the function has drawn


def test_importance_weights_count_in_the_summary(normal: DensityPosterior, monkeypatch):
    w = np.zeros((CHAINS, normal.draws()["centre"].shape[1]))
    w[:, 3] = 1 / CHAINS
    monkeypatch.setattr(DensityPosterior, "sample_stats", lambda self: {"weight": w})
    row, x = normal.summary().loc["centre"], normal.draws()["centre"][:, 3]
    assert row["mean"] == pytest.approx(x.mean(), rel=1e-6) and row["sd"] == pytest.approx(x.std(), rel=1e-3)


REFUSED = {
    "a start outside": (dict(init={"centre": -1.0}, constraints={"centre": constraints.positive}), "must lie inside"),
    "a name of none": (dict(constraints={"center": constraints.positive}), "name 'center', of which init has no value"),
    "no transform": (dict(constraints={"centre": constraints.nonnegative_integer}), r"constraints\['centre'\] must be"),
    "a sum of rows": (dict(log_likelihood=lambda p, y: log_likelihood(p, y).sum()), r"log_likelihood must .* \(100,\)"),
    "a vector prior": (dict(log_prior=lambda p: log_prior(p).expand(2)), r"log_prior must return .* shape \(\)"),
    "not finite": (dict(log_prior=lambda p: log_prior(p) - math.inf), "log_prior is not finite at the start"),
    "another name": (dict(log_prior=lambda p: log_prior({"centre": p["center"]})), "evaluated at the start: KeyError"),
    "a name of torch": (dict(init={"train": 0.0}), "cannot be called 'train'"),
    "no rows": (dict(data=Y[:0]), r"data must be tensors .*, got float32 \(0,\)"),
    "lengths": (dict(data={"y": Y, "x": Y[1:]}), r"got dict\(y: float32 \(1000,\), x: float32 \(999,\)\)"),
    "a prior": (dict(prior=bdl.Gaussian()), "prior is no argument here"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_density_is_one_line(name: str, tmp_path):
    changed, words = REFUSED[name]
    with pytest.raises(ConfigError, match=words) as refused:
        bdl.sample_density(**{**NORMAL, **SHORT, **changed}, run_dir=tmp_path / "run")
    assert "\n" not in str(refused.value) and not (tmp_path / "run").exists()


def test_a_density_that_branches_on_values_runs_chain_by_chain(tmp_path):
    """It gives the draws of the vectorised one, to rounding."""

    def branches(p: dict[str, Tensor]) -> Tensor:
        return log_prior(p) if float(p["centre"].detach()) > -100 else p["centre"]

    few = {**SHORT, "steps": 8, "chains": 2, "keep": bdl.schedules.EveryStep(0, 1)}
    with pytest.warns(BdlWarning, match="cannot vectorise the density over chains"):
        one = bdl.sample_density(**{**NORMAL, "log_prior": branches}, run_dir=tmp_path / "a", **few)
    other = bdl.sample_density(**NORMAL, run_dir=tmp_path / "b", **few)
    np.testing.assert_allclose(one.draws()["centre"], other.draws()["centre"], rtol=1e-4)


@pytest.mark.slow
def test_a_call_without_settings_samples_the_posterior(tmp_path):
    """From a start 40 posterior standard deviations away, in batches, with lr and friction that nobody has chosen."""
    asked = NORMAL | {"init": {"centre": 0.0}, "batch_size": 200}
    found = bdl.sample_density(**asked, run_dir=tmp_path, steps=3000, accelerator="cpu")
    mean, std = exact()
    row = found.summary().loc["centre"]
    assert found.metrics["rhat/max"] < 1.1 and found.metrics["ess/min"] > 80
    assert abs(row["mean"] - mean) < 4 * row["mcse_mean"] < 0.5 * std
    assert row["sd"] / std == pytest.approx(math.sqrt(found.metrics["t_eff"]), rel=0.15)
