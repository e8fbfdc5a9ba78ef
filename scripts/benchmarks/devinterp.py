"""devinterp's estimator beside ours on linear networks: python scripts/bench.py devinterp. Needs devinterp 2.

Its sampler is `SGMCMC.sgld`, and its estimate that of `compute_llc`: the mean over all steps of all chains, the burn-in
included. Its own `llc` takes tokens alone, so the loop around the sampler stands here. Every gradient is that of all
items. Settings: its default step size 0.01 and that of its README, 0.001, with its defaults of 4 chains and 200 draws;
and the default step size with 20 times as many gradients. The localization is ours, because its default is none.
"""

import math
import time
from importlib.metadata import version
from typing import Any

import torch
from literature.targets.reduced_rank import ReducedRank
from tools.results import RESULTS, about, save

import bdl

MODELS = [(2, 2, 2, 1), (4, 3, 4, 1)]
N, LOCALIZATION = 1000, 1.0
SETTINGS = {"default": (0.01, 4, 200), "README": (0.001, 4, 200), "long": (0.01, 8, 2000)}
NLL = bdl.GaussianNLL(1.0)


def devinterp(model: ReducedRank, lr: float, chains: int, draws: int) -> dict[str, float]:
    """λ̂, its standard error over chains, and core-seconds."""
    from devinterp.optim import SGMCMC  # type: ignore[import-not-found]

    (x, y), beta, each = model.items(), N / math.log(N), []
    began = time.process_time()
    for chain in range(chains):
        torch.manual_seed(chain)
        net, losses = model.network(), []
        sampler = SGMCMC.sgld(net.parameters(), lr=lr, nbeta=beta, localization=LOCALIZATION)
        for _ in range(draws):
            sampler.zero_grad()
            loss = NLL(net(x), y).mean()
            loss.backward()
            losses.append(loss.item())
            sampler.step()
        start = float(NLL(model.network()(x), y).mean())
        each.append(beta * (sum(losses) / draws - start))
    std, mean = torch.std_mean(torch.tensor(each, dtype=torch.float64))
    return {"value": float(mean), "std_error": float(std) / math.sqrt(chains), "lr": lr, "gradients": chains * draws,
            "core_seconds": time.process_time() - began}  # fmt: skip


def ours(model: ReducedRank) -> dict[str, float]:
    """The same by bdl's defaults. Its gradients: 800 steps that find lr, 2,000 of burn-in, 4,000 that count."""
    began = time.process_time()
    found = bdl.learning_coefficient(model.network(), NLL, [model.items()], num_data=N, localization=LOCALIZATION)
    return {"value": found.value, "std_error": found.std_error, "lr": found.lr, "gradients": 8 * 6800,
            "core_seconds": time.process_time() - began}  # fmt: skip


def row(sizes: tuple[int, int, int, int]) -> dict[str, Any]:
    model = ReducedRank(*sizes)
    expected, error = model.expected(N, math.log(N), LOCALIZATION, chains=200, sweeps=600)
    methods = {"bdl": ours(model), **{name: devinterp(model, *settings) for name, settings in SETTINGS.items()}}
    for method in methods.values():
        method["z"] = (method["value"] - expected) / math.hypot(method["std_error"], error)
        method["relative"] = method["value"] / expected - 1
    return {"model": "(M, H, N, r) = " + str(sizes), "expected": expected, **methods}


def main() -> None:
    torch.set_num_threads(1)
    rows = [row(sizes) for sizes in MODELS]
    record = {**about(), "devinterp": version("devinterp"), "N": N, "settings": SETTINGS, "rows": rows}
    save(RESULTS / "learning_coefficients" / "devinterp.json", record)
    for r in rows:
        print(r)
