"""Importance weights of chains that share psi, and of chains that do not, on two modes of .25 and .75."""

import math

import numpy as np
import pytest
import torch
import toys
from by_hand import record, settled, settled_run
from torch import nn

import bdl
from bdl.posterior.store import Record
from bdl.posterior.weights import sample_weights
from bdl.schedules import EveryStep

D64 = torch.float64
SHARES, CENTRES, WIDTH = torch.tensor([0.25, 0.75], dtype=D64), torch.tensor([-3.0, 3.0], dtype=D64), 0.5
CHAINS, BETWEEN = 4000, 10


def energies(theta: torch.Tensor) -> torch.Tensor:
    """(C,) U of the mixture at theta (C, 1), nats."""
    return -((SHARES.log() - (theta - CENTRES).square() / (2 * WIDTH**2)).logsumexp(1))


@pytest.fixture(scope="module")
def draws() -> tuple[list[Record], np.ndarray]:
    """Records of 3 steps, a few steps apart, of chains that seldom leave their mode, and whether each was in the first.

    The chains start from the weighted law: from draws of the mixture, resampled by psi(U)^-zeta, and moved by it.
    """
    generator = torch.Generator().manual_seed(0)
    mode = (torch.rand(CHAINS, generator=generator, dtype=D64) > 0.25).long()
    theta = nn.Parameter((CENTRES[mode] + WIDTH * torch.randn(CHAINS, generator=generator, dtype=D64)).unsqueeze(1))
    weighting = settled(high=8.0, shared=True)
    arguments = dict(num_data=1, lr=0.02, chains=CHAINS, prior=bdl.Uniform(), weighting=weighting)
    sampler = bdl.Sampler([theta], bdl.SGLD(), **arguments)

    def closure() -> torch.Tensor:
        sampler.zero_grad()
        losses = energies(theta)
        losses.sum().backward()
        return losses.detach()

    for _ in range(200):
        sampler.step(closure)
    assert sampler.reweighting.freeze() and len(sampler.reweighting.histogram.psi) == 1
    with torch.no_grad():  # the modes' shares under the weighted law, which the chains cannot find in so few steps
        position = (CENTRES[mode] + WIDTH * torch.randn(CHAINS, generator=generator, dtype=D64)).unsqueeze(1)
        w = (-sampler.log_weight_at(energies(position))).exp()
        theta.copy_(position[torch.multinomial(w, CHAINS, replacement=True, generator=generator)])
    records, first = [], []
    for k in range(1, 3 * BETWEEN + 1):
        at = theta.detach().clone()
        sampler.step(closure)
        if k % BETWEEN == 1:
            records.append(record(k, sampler.log_weight.tolist(), energy_full=energies(at).tolist()))
            first.append((at[:, 0] < 0).numpy())
    return records, np.stack(first)  # (3, C)


def share(draws: tuple[list[Record], np.ndarray], psi_of: list[int] | None) -> tuple[float, float]:
    """The weighted share of the first mode, and its standard error over chains."""
    records, first = draws
    keyed = [(c, r, c) for r in records for c in range(CHAINS)]
    by_key = sample_weights(keyed, CHAINS, "importance", full_data=True, psi_of=psi_of).by_key
    w = np.array([[by_key[c, r.step] for c in range(CHAINS)] for r in records])
    assert w.sum() == pytest.approx(CHAINS)
    mean = (w * first).sum() / w.sum()
    residual = (w * (first - mean)).sum(0)  # of a ratio, by the delta method
    return mean, math.sqrt(residual.var(ddof=1) / CHAINS)


def test_the_weights_of_chains_that_share_psi_lead_back_to_law(draws):
    mean, error = share(draws, [0] * CHAINS)
    assert abs(mean - 0.25) < 4 * error and error < 0.015
    alone, _ = share(draws, None)
    assert abs(alone - 0.25) > 4 * error, "the law would not tell the two normalisations apart"


def test_one_normalisation_for_each_psi():
    """Chains 0 and 1 share psi, chain 2 has its own. Weights of a psi sum to the number of its chains."""
    logs = {5: [0.0, math.log(3.0), 700.0], 6: [math.log(2.0), math.log(2.0), 700.0 + math.log(3.0)]}
    records = [record(k, v, zeta=1.0) for k, v in logs.items()]
    weights = sample_weights([(c, r, c) for r in records for c in range(3)], 3, "importance", psi_of=[0, 0, 2])
    expected = {(0, 5): 0.25, (0, 6): 0.5, (1, 5): 0.75, (1, 6): 0.5, (2, 5): 0.25, (2, 6): 0.75}
    assert weights.by_key == pytest.approx(expected)
    assert "without a shared psi are normalised one by one" in weights.note
    assert "one by one" not in sample_weights([(0, r, 0) for r in records], 1, "importance").note


@pytest.mark.parametrize("shared", [True, False])
def test_a_posterior_knows_which_chains_share_psi(tmp_path, shared):
    posterior = bdl.Posterior.load(settled_run(tmp_path, 80, EveryStep(50, 3), shared=shared), toys.plain())
    weights = posterior.weights("importance")
    sums = [sum(w for (chain, _), w in weights.by_key.items() if chain == c) for c in range(2)]
    assert sum(sums) == pytest.approx(2) and (sums == pytest.approx([1, 1])) != shared
    assert ("one by one" in weights.note) != shared
