"""A linear regression whose posterior is normal, and runs of independent draws from it."""

import torch
from torch import nn

import bdl
from bdl.posterior.store import SampleStore

D64 = torch.float64
N, TESTS, D, NOISE = 40, 7, 3, 0.5
LAW = bdl.GaussianNLL(NOISE)


def rows(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, D, generator=draw, dtype=D64)
    return x, (x.sum(1, keepdim=True) + NOISE * torch.randn(n, 1, generator=draw, dtype=D64))


TRAIN, TEST = rows(N, 0), rows(TESTS, 1)


def law(weights: torch.Tensor, t: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance of exp(-U/T) under a standard normal prior, where row i counts weights[i] times."""
    x, y = TRAIN
    precision = (x.T * weights) @ x / NOISE**2 + torch.eye(D, dtype=D64)
    return torch.linalg.solve(precision, (x.T * weights) @ y / NOISE**2), t * torch.linalg.inv(precision)


def store(folder, t: float = 1.0, chains: int = 150, files: int = 30, temperature=None, shift: float = 0.0):
    """A run of independent draws; `shift` moves the chains apart, as modes do."""
    mean, spread = law(torch.ones(N, dtype=D64), t)
    draw = torch.Generator().manual_seed(2)
    noise = torch.randn(files, chains, D, generator=draw, dtype=D64) @ torch.linalg.cholesky(spread).T
    theta = mean.T + noise + shift * torch.arange(chains, dtype=D64)[:, None]
    kept = SampleStore(folder)
    kept.write_target({"num_data": N})
    for step in range(files):
        kept.write(
            {"weight": theta[step].unsqueeze(1)}, step=step, stack=0, chains=list(range(chains)), lr=0.1,
            temperature=t if temperature is None else temperature(step),
        )  # fmt: skip
    return bdl.Posterior.opened(folder, nn.Linear(D, 1, bias=False).double(), likelihood=LAW).cache()
