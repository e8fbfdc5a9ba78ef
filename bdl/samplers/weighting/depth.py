"""How deep a weighted chain went: nats of log G between the energies visited and the top."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bdl.samplers.weighting.histogram import ENOUGH, Histogram


def depth(h: Histogram, zeta: float) -> tuple[Tensor, Tensor]:
    """-log G(u) at the median u of each row's recent energies, and its error, both (R,) nats; NaN where unknown.

    psi of AdaptiveWeight says it. Where psi rests, its rises 1 - θ_(i-1)/θ_i are in proportion to the shares of bins
    under the weighted law, and shares times psi^zeta to their masses under exp(-U/T), whose sums are G. Only bins from
    the lowest one that was visited ENOUGH count, and u must not lie below it. One visited bin alone says nothing.

    The error is the root of the sum of squares of four parts, means over the rows:

    - how much zeta log psi would change between u and the top if shares were those of the recent energies;
    - the nats of the bins in between without a recent energy: psi there is what a chain left on its way;
    - the largest rise of zeta log psi from one bin to the next, since more than that is not resolved;
    - the standard error between rows, where there are several.
    """
    unknown = torch.full_like(h.clock, math.nan)
    if h.edges is None or zeta <= 0 or h.seen == 0:
        return unknown, unknown.clone()
    recent, edges, psi = h.window[: min(h.seen, h.pilot)].cpu(), h.all_edges().cpu(), h.psi.cpu()
    log_psi, visits = h.log_psi.cpu(), h.visits.cpu()
    rows = (_of_row(recent, edges, visits, psi, log_psi, row, zeta) for row in range(len(psi)))
    each = torch.tensor(list(rows), dtype=torch.float64)
    known = each[each.isfinite().all(1)]
    between = known[:, 0].std() / math.sqrt(len(known)) if len(known) > 1 else torch.tensor(0.0)
    error = (known[:, 1:].mean(0).square().sum() + between**2).sqrt()  # NaN where no row is known
    return each[:, 0].to(h.clock), unknown.fill_(float(error))


def _of_row(
    recent: Tensor, edges: Tensor, visits: Tensor, psi: Tensor, log_psi: Tensor, row: int, zeta: float
) -> tuple[float, ...]:
    """The depth of one row of psi, and the first three parts of its error. All tensors lie on the CPU."""
    recent = recent.flatten() if len(psi) == 1 else recent[:, row].contiguous()
    inner = edges[row, 1:-1].contiguous()
    bins, visited = torch.bucketize(recent, inner), visits[row] >= ENOUGH
    low, j = int(visited.int().argmax()), int(torch.bucketize(recent.median(), inner))
    if j < low or int(visited.sum()) < 2:  # one bin says nothing of the others
        return (math.nan,) * 4
    theta, log_psi = psi[row, low:].double().clamp_min(1e-300), log_psi[row, low:].double()
    rises = torch.cat([theta.new_ones(1), 1 - theta[:-1] / theta[1:]])
    log_g = (rises.clamp_min(1e-300).log() + zeta * log_psi).logcumsumexp(0)
    above, nats = slice(j - low + 1, None), zeta * log_psi.diff()[j - low :]  # nats (bins above u,)
    share = float((bins > j).double().mean())  # the share of the recent energies
    missed = torch.bincount(bins, minlength=len(inner) + 1)[low:][above] == 0
    return (
        float(log_g[-1] - log_g[j - low]),
        zeta * (share * float(rises.sum()) - float(rises[above].sum())),
        float(nats[missed].sum()),
        float(nats.max()) if len(nats) else 0.0,
    )
