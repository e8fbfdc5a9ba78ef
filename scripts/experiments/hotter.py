"""Weights that lead back from a hotter T: two modes far apart, and what `sampler=awsghmc` does on Landsat.

python scripts/experiment.py hotter [--dimensions D ...] [--runs RUN ...] [--out DIR]

Two Gaussians of unit width lie 8 apart, with the weights .25 and .75; 64 chains of SGLD make 12,000 steps of lr .02, of
which the later half is kept. Chains are plain at T = 1, or move at T = 4 with weights to T0 = 1 and bins that nobody
gave. --runs reads finished runs of `scripts/train.py sampler=awsghmc`. The file hotter.json of --out holds the numbers,
hotter.md the table; rows that were measured before stay.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from tools.command import Said
from tools.results import TABLES, about, markdown, origin, read, save
from torch import Tensor

import bdl

APART, SHARE = 8.0, 0.25  # distance of the modes, and the weight of the one at 0
CHAINS, STEPS, EVERY = 64, 12_000, 10
ZETAS = {2: 1.0, 10: 1.0, 30: 1.0, 100: 4.0}  # by the dimension
HOT = 4.0
NAMES = {"nll": "test/bma/nll", "error": "test/bma/accuracy", "rhat": "rhat/max", "outcome": "verdict/outcome"}


def main(
    *,
    dimensions: Annotated[Sequence[int], Said("keys of ZETAS", metavar="D")] = (),
    runs: Annotated[Sequence[Path], Said(metavar="RUN")] = (),
    out: Annotated[Path, Said(metavar="DIR")] = TABLES,
) -> None:
    torch.set_num_threads(1)
    path = out / "hotter.json"
    record = read(path, modes={}, landsat=[])
    for d in dimensions:
        plain = measured(d, 1.0, bdl.Flat())
        weighted = measured(d, HOT, bdl.AdaptiveWeight(ZETAS[d], target=1.0))
        record["modes"][str(d)] = {"plain": plain, "weighted": weighted}
        print(d, record["modes"][str(d)], flush=True)
    if runs:
        record["landsat"] = [scores(run) for run in runs]
    record |= about()
    save(path, record, table(record))


def measured(d: int, temperature: float, weighting: Any) -> dict[str, float]:
    """Hops between the modes a chain; the estimate of SHARE; the effective sample size of the weights."""
    centres = torch.zeros(2, d, dtype=torch.float64)
    centres[1, 0] = APART
    stream = torch.Generator().manual_seed(0)
    at = (torch.arange(CHAINS) % 2).long()
    theta = (centres[at] + torch.randn(CHAINS, d, generator=stream, dtype=torch.float64)).requires_grad_()
    sampler = bdl.Sampler(
        [theta], bdl.SGLD(), num_data=1, lr=0.02, temperature=temperature, prior=bdl.Uniform(), weighting=weighting,
        chains=CHAINS,
    )  # fmt: skip

    def closure() -> Tensor:
        sampler.zero_grad()
        logs = [math.log(w) - (theta - c).square().sum(1) / 2 for w, c in zip((SHARE, 1 - SHARE), centres, strict=True)]
        loss = -torch.logaddexp(*logs)
        loss.sum().backward()
        return loss.detach()

    first, logs = [], []
    for step in range(STEPS):
        before = theta.detach()[:, 0].clone()  # at which the step takes its energy
        sampler.step(closure)
        first.append(before)
        logs.append(sampler.log_weight.clone())
        if step == STEPS // 2:
            sampler.snapshot()  # which freezes psi once it has settled
    kept = slice(STEPS // 2, STEPS, EVERY)
    weights = (torch.stack(logs)[kept] - torch.stack(logs)[kept].max()).exp()
    near = (torch.stack(first)[kept] < APART / 2).double()
    return {
        "hops": hops(torch.stack(first)),
        "share": float((weights * near).sum() / weights.sum()),
        "effective": float(weights.sum() ** 2 / weights.square().sum()),
        "draws": weights.numel(),
    }


def hops(first: Tensor) -> float:
    """Moves from within 2 of one mode to within 2 of the other, per chain, by the first coordinate (n, C)."""
    side = torch.where(first < 2, 0, torch.where(first > APART - 2, 1, -1))
    for row in range(1, len(side)):
        side[row] = torch.where(side[row] < 0, side[row - 1], side[row])
    return float(((side[1:] != side[:-1]) & (side[:-1] >= 0)).double().sum(0).mean())


def scores(run: Path) -> dict[str, float]:
    metrics = json.loads((run / "metrics.json").read_text())
    found = {name: metrics[key] for name, key in NAMES.items()}
    return found | {"error": 100 * (1 - found["error"])}


def table(record: dict[str, Any]) -> str:
    rows = [
        [
            f"{int(d):,}, zeta {ZETAS[int(d)]:g}", f"{both['plain']['hops']:.2f}", f"{both['weighted']['hops']:.1f}",
            f"{both['plain']['share']:.2f}", f"{both['weighted']['share']:.2f}",
            f"{both['weighted']['effective']:,.0f} of {both['weighted']['draws']:,}",
        ]
        for d, both in sorted(record["modes"].items(), key=lambda item: int(item[0]))
    ]  # fmt: skip
    heads = ["dimension", "hops, plain", "hops, weighted", "share 0.25, plain", "share 0.25, weighted", "effective"]
    of_runs = [[f"{r['nll']:.4f}", f"{r['error']:.2f}", f"{r['rhat']:.3f}"] for r in record["landsat"]]
    parts = [f"{origin(record)}\n", markdown(heads, rows), markdown(["NLL", "error %", "R-hat"], of_runs)]
    return "\n".join(parts)
