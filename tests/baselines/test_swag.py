"""Tests of `bdl.contrib.baselines.swag`, `.base` and `bdl.posterior.trained`.

SWAG: the law of its draws against moments of the iterates that NumPy computes.
"""

from itertools import islice

import numpy as np
import pytest
import torch
import toys
from torch import nn

import bdl
from bdl.contrib.baselines.base import Material
from bdl.contrib.baselines.swag import Moments
from bdl.data import TensorSlices
from bdl.errors import ConfigError, StoreError
from bdl.posterior.store import SampleStore
from bdl.seeding import generator

DRAWS = 4000


def written(folder, net: nn.Module, iterates: list[dict[str, torch.Tensor]]) -> bdl.Posterior:
    """A store whose files hold these tensors (C, ...), as a run of SGD leaves them."""
    store = SampleStore(folder)
    store.write_target({"num_data": toys.N, "loss": {"type": "bdl.CategoricalNLL"}, "prior": None})
    for step, tensors in enumerate(iterates, 1):
        chains = len(next(iter(tensors.values())))
        store.write(tensors, step=step, stack=0, chains=list(range(chains)), lr=0.1, temperature=0.0)
    return bdl.Posterior.load(folder, net)


def drawn(baseline, trained: bdl.Posterior, train, count: int) -> dict[str, torch.Tensor]:
    """(count, ...) tensors of draws of the first chain, in memory: thousands of files would take minutes."""
    networks = islice(baseline.networks(Material(trained, train, None, seed=0)), count)
    each = [chains[0] for chains in networks]
    return {name: torch.stack([tensors[name] for tensors in each]) for name in each[0]}


def covariance(iterates: np.ndarray, rank: int) -> np.ndarray:
    """The covariance of Maddox et al. 2019, section 3.2, of iterates (n, d); D holds deviations from running means."""
    diagonal = np.diag(iterates.var(0))
    if not rank:
        return diagonal
    means = np.cumsum(iterates, 0) / np.arange(1, len(iterates) + 1)[:, None]
    D = (iterates - means)[-rank:]
    return diagonal / 2 + D.T @ D / (2 * (rank - 1))


@pytest.mark.parametrize("rank", [0, 2, 5, 12])
def test_draws_have_the_mean_and_the_covariance_of_the_paper(rank):
    """Bounds: 5 standard errors of each of 4 means and 16 covariances; an error of 11 % of a variance is seen."""
    iterates = np.random.default_rng(rank).normal(size=(12, 4)).cumsum(0) + 100  # far from 0: no cancellation
    moments = Moments(rank)
    for theta in iterates:
        moments.add(torch.tensor(theta))
    random = torch.Generator().manual_seed(1)
    draws = torch.stack([moments.draw(random) for _ in range(DRAWS)]).numpy()
    wanted = covariance(iterates, rank)
    variance = np.diag(wanted)
    assert (np.abs(draws.mean(0) - iterates.mean(0)) < 5 * np.sqrt(variance / DRAWS)).all()
    error = np.sqrt((np.outer(variance, variance) + wanted**2) / DRAWS)
    assert (np.abs(np.cov(draws.T) - wanted) < 5 * error).all()


def test_each_chain_has_its_gaussian_and_store_holds_its_draws(tmp_path):
    net, random = nn.Linear(2, 3), torch.Generator().manual_seed(0)
    shift = torch.tensor([0.0, 50.0])
    iterates = [
        {"weight": torch.randn(2, 3, 2, generator=random) + shift.view(2, 1, 1),
         "bias": torch.randn(2, 3, generator=random) - shift.view(2, 1)} for _ in range(6)
    ]  # fmt: skip
    trained = written(tmp_path / "sgd", net, iterates)
    posterior = bdl.SWAG(draws=3, rank=4).fit(trained, tmp_path / "swag", seed=7)
    assert (posterior.samples, posterior.chains) == (6, 2)
    for sample in posterior.stream():
        moments = Moments(4)
        for tensors in iterates:
            moments.add(torch.cat([tensors["weight"][sample.chain].flatten(), tensors["bias"][sample.chain]]))
        stream, number = generator("cpu", "swag", 7, sample.chain), sample.record.step - 6
        wanted = [moments.draw(stream) for _ in range(number)][-1].float()
        torch.testing.assert_close(torch.cat([sample.tensors["weight"].flatten(), sample.tensors["bias"]]), wanted)
    assert posterior.target["approximation"] == {"type": "bdl.SWAG", "draws": 3, "rank": 4}
    with pytest.raises(StoreError, match="holds samples already"):
        bdl.SWAG(draws=3, rank=4).fit(trained, tmp_path / "swag")
    bdl.SWAG(draws=2, rank=4).fit(trained, tmp_path / "swag", overwrite=True)
    assert bdl.Posterior.load(tmp_path / "swag", net).samples == 4


def test_the_statistics_of_batchnorm_are_those_of_the_draw(tmp_path):
    """Over the training items as the network sees them when it predicts: without dropout's noise."""
    layers = (nn.Linear(3, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))
    net, (x, y) = nn.Sequential(*layers), toys.tensors()
    random = torch.Generator().manual_seed(0)
    iterates = []
    for _ in range(3):
        tensors = {name: torch.randn(1, *p.shape, generator=random) for name, p in net.named_parameters()}
        iterates.append(tensors | {name: b.clone().unsqueeze(0) for name, b in net.named_buffers()})
    trained = written(tmp_path / "sgd", net, iterates)
    loader = TensorSlices(x, y, batch_size=10)
    posterior = bdl.SWAG(draws=2, rank=2).fit(trained, tmp_path / "swag", train=loader)
    for sample in posterior.stream():
        hidden = x @ sample.tensors["0.weight"].T + sample.tensors["0.bias"]
        torch.testing.assert_close(sample.tensors["2.running_mean"], hidden.mean(0), atol=1e-5, rtol=1e-5)
        each = torch.stack([part.var(0) for part in hidden.split(10)])  # update_bn averages the batches' variances
        torch.testing.assert_close(sample.tensors["2.running_var"], each.mean(0), atol=1e-5, rtol=1e-5)
    with pytest.raises(ConfigError, match="SWAG needs train data: pass train="):
        bdl.SWAG(draws=2, rank=2).fit(trained, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_too_few_iterates_and_wrong_values_are_one_line(tmp_path):
    net = nn.Linear(2, 3)
    iterates = [{"weight": torch.zeros(1, 3, 2), "bias": torch.zeros(1, 3)}] * 3
    trained = written(tmp_path / "sgd", net, iterates)
    with pytest.raises(ConfigError, match="SWAG of rank 20 needs at least 20 iterates of every chain, and one has 3"):
        bdl.SWAG().fit(trained, tmp_path / "swag")
    assert not (tmp_path / "swag").exists()
    for wrong in ({"draws": 0}, {"rank": 1}, {"rank": -1}, {"draws": 2.5}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))} must be"):
            bdl.SWAG(**wrong)
