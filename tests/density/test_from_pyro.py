"""Tests of `bdl.contrib.pyro`: a model of Pyro is the density that is written by hand; chains of it run."""

import pytest
import torch
from densities import MODELS, in_pyro
from torch import Tensor

import bdl.contrib.pyro
from bdl.contrib.density.sample import as_transform, sample_from
from bdl.contrib.pyro import from_pyro
from bdl.errors import ConfigError

pyro = pytest.importorskip("pyro", reason="the extra [pyro] is not installed")


def by_hand(name: str, parameters: dict[str, Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
    model = MODELS[name]()
    data = model.data[rows] if isinstance(model.data, Tensor) else {k: v[rows] for k, v in model.data.items()}
    return model.log_prior(parameters), model.log_likelihood(parameters, data)


@pytest.mark.parametrize(("name", "batch"), [("eight_schools", None), ("logistic", 50), ("mixture", 30)])
def test_a_model_is_the_density_that_is_written_by_hand(name: str, batch: int | None):
    """The prior, and each row's likelihood, for as many rows as the plate takes, for fewer and for more.

    Plates scale the rows of a batch up; were that left in, a row would count 67 or 200 times.
    """
    model, arguments = in_pyro(name, batch)
    density = from_pyro(model, *arguments)
    assert (density.batch_size, density.num_data) == (batch or 8, len(arguments[-1]))
    parameters = {
        k: as_transform(k, c)(0.3 * torch.randn(as_transform(k, c).inv(torch.as_tensor(v)).shape))
        if (c := MODELS[name]().constraints.get(k)) is not None
        else torch.as_tensor(v) + 0.3
        for k, v in MODELS[name]().init.items()
    }
    for rows in (torch.arange(batch or 8).flip(0), torch.tensor([3, 1]), torch.arange(density.num_data)[-77:]):
        found, expected = density.terms(parameters, rows), by_hand(name, parameters, rows)
        torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-5)


def test_chains_of_a_model_with_a_subsampled_plate_run(tmp_path):
    """Each chain begins where the seed has drawn, and reads rows of its own."""
    model, arguments = in_pyro("logistic", 50)
    density = from_pyro(model, *arguments)
    found = sample_from(density, tmp_path, steps=10, lr=0.01, chains=2, accelerator="cpu", full_energy=False)
    draws = found.draws()
    assert draws["alpha"].shape[0] == 2 and draws["alpha"].shape[2] == 10 and (draws["tau"] > 0).all()
    assert found.to_arviz()["posterior"]["alpha"].dims == ("chain", "draw", "groups")
    assert abs(draws["mu"][0] - draws["mu"][1]).min() > 1e-3


def discrete() -> None:
    k = pyro.sample("k", pyro.distributions.Bernoulli(0.5))
    pyro.sample("y", pyro.distributions.Normal(k, 1.0), obs=torch.zeros(()))


def local() -> None:
    with pyro.plate("rows", 9, subsample_size=3) as rows:
        z = pyro.sample("z", pyro.distributions.Normal(0.0, 1.0))
        pyro.sample("y", pyro.distributions.Normal(z, 1.0), obs=torch.zeros(9)[rows])


def unobserved() -> None:
    pyro.sample("mu", pyro.distributions.Normal(0.0, 1.0))


REFUSED = {
    discrete: "variable k is discrete",
    local: "z lies in the subsampled plate rows",
    unobserved: "observed site",
}


@pytest.mark.parametrize("model", REFUSED, ids=lambda model: model.__name__)
def test_other_models_are_refused_in_one_line(model):
    with pytest.raises(ConfigError, match=REFUSED[model]) as refused:
        from_pyro(model)
    assert "\n" not in str(refused.value)


def test_a_missing_pyro_is_one_line(monkeypatch):
    monkeypatch.setattr(bdl.contrib.pyro, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'bdl\[pyro\]'"):
        from_pyro(unobserved)
