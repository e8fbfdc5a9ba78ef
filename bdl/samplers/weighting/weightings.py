"""Weightings by an energy histogram, which change the law to exp(-U/T) / psi(U)^zeta.

log psi is one piecewise-linear function of U (`bdl.psi`). The gradient multiplier is 1 + zeta T times its exact slope;
the importance weight back to exp(-U/T) is psi(U)^zeta, and that to a target exp(-U/T0) is psi(U)^zeta exp(-U (1/T0 -
1/T)). Multiplier and weight can therefore never disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bdl.errors import ConfigError
from bdl.psi import Array, exp, lean
from bdl.samplers.weighting.depth import depth
from bdl.samplers.weighting.histogram import Form, Histogram
from bdl.samplers.weighting.histogram_weighting import HistogramWeighting


@dataclass(frozen=True)
class AdaptiveWeight(HistogramWeighting):
    """psi = energy CDF to the power 1/zeta: AWSGLD, AWSGHMC, ... (Liang 2024, slides on adaptively weighted SG-MCMC).

        θ_i <- θ_i + gamma θ_J (1{i >= J} - θ_i),    J = bin of U

    This is the normalised form of Liang's recursion. Its fixed point has θ_m = 1 and θ_i ∝ Σ_{j<=i} g_j θ_j^(1 - zeta),
    with g_j the mass of bin j under exp(-U/T). With narrow bins that is θ_i^zeta ∝ G_1 + zeta (G_i - G_1), where G_1 is
    the mass of the lowest bin: the larger zeta, the more of the weighted law lies there. psi increases with U, so that
    the multiplier is >= 1 and pulls towards low energy. Above the highest bin's centre log psi goes on with its last
    slope, because that region has no upper edge.

    Args:
        zeta: power of the weight, at most 1e9. "auto": `bdl.find_settings` finds it, with the ends of the bins and the
            temperature at which the chains move; no `Sampler` takes it before.
        low, high: ends of the bins: nats, a quantile of the pilot's energies ("0.1%"), or nats per item ("0.5N").
            None: a pilot without weighting finds them, once the energies of `pilot` steps show no drift. high is then
            the 99.9 % quantile of their later half and a tenth of the range above it. low is their 0.1 % quantile at
            first; it goes down while more than 5 % of the recent energies lie in the lowest bin, until psi is frozen.
            The weighted law then reaches about 19 zeta nats of log G below the top. With a target it goes down while
            more than 1 % of the target distribution lies in the lowest bin. `low` is part of the law: psi is constant
            below it.
        bins: how many, of one width.
        edges: all edges of the bins, ascending, instead of low, high and bins.
        form: "slides": log psi rises from bin to bin by 1 - θ_(J-1)/θ_J (eq. 6), with a target by the difference of
            the logarithms, in proportion to the visits of a bin until it has 10, and θ starts at 1. "code", as in the
            author's code: it rises by the difference of the logarithms, every rise counts in full, and θ starts at i/m.
            "full": it rises as under "slides", every rise counts in full, and θ starts at i/m. While the energies do
            not reach the lower ones of two bins, the multiplier above the lower one's centre is then 1 + zeta T /
            (their width). Other forms: a `histogram.Form`.
        rate: step of the recursion as a function of its count.
        shared: one psi for all chains. None: with a target.
        energy: "batch" (N times the batch loss, plus the prior), "ema" (a running mean, decay 0.95), "full"
            (`Sampler.full_loss`, evaluated every `refresh` steps), or "control": the batch's, less what this batch's
            energy differs from the full one at the θ of the last refresh. That costs a second forward pass a step; its
            mean is U, and its noise grows with the distance from that θ (a control variate as in Johnson & Zhang 2013).
        units: those of energies and edges, "nats", or "temperature": energies are U/T, for bins that follow a falling T
            where U falls in proportion to it. U of a network falls less.
        target: T0, the temperature of the posterior that is wanted; the sampler's `temperature` T is then the one at
            which the chains move, usually a hotter one. Log weights are zeta log psi(U) - U (1/T0 - 1/T). None: T0 = T.
            Noise of the energies, of standard deviation s, divides the effective sample size by exp(s² (1/T0 - 1/T)²):
            take all data, or energy="full" or "control", where that is much.

    Raises ConfigError for values out of range, edges that do not ascend, low >= high, and what is given beside
    zeta="auto", which finds it.
    """

    forms: ClassVar[dict[str, Form]] = HistogramWeighting.forms | {"full": Form("bounded", 0, "linear")}
    open_top: ClassVar[bool] = True
    descends: ClassVar[bool] = True

    def _check_auto(self) -> None:
        for name in ("low", "high", "edges", "units"):
            value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            if value != default:
                raise ConfigError(
                    f'{name} = {value!r} beside zeta="auto", which finds the ends of the bins too, in nats: leave '
                    f"{name} = {default!r}, or give a number for zeta"
                )

    def depth(self, h: Histogram, zeta: float) -> tuple[Tensor, Tensor]:
        return depth(h, zeta)

    def pull(self, h: Histogram, u: Array, j: Array, zeta: float | Tensor) -> Array:
        grid = h.grid()
        return grid.psi[grid.rows, j]

    def aim(self, h: Histogram, j: Array) -> Array:
        return 1.0 * (h.grid().numbers >= j[:, None])


@dataclass(frozen=True)
class Contour(HistogramWeighting):
    """psi = density of energy: contour SG-MCMC (Deng et al. 2020), which flattens the histogram of energies.

        θ_i <- θ_i + gamma w (1{i = J} - θ_i),    J = bin of U,    w = (psi(U) / max psi)^zeta

    The paper has θ_J^zeta in place of w. w is, up to a factor, the weight in force: interpolated between bin centres,
    with bounded rises. Only with w is the fixed point the mass of bin i under exp(-U/T). With θ_J^zeta and bounded
    rises, psi collapses where neighbouring masses differ by more than a factor e. psi falls at high energies, so that
    the multiplier may be negative; log psi is constant outside of the bins. Arguments as in AdaptiveWeight, but a floor
    that the pilot found stays, and under form="slides" log psi rises by the difference of the logarithms, at most 1.
    """

    forms: ClassVar[dict[str, Form]] = {"slides": Form("clipped"), "code": Form("log", 0, "linear")}

    def pull(self, h: Histogram, u: Array, j: Array, zeta: float | Tensor) -> Array:
        return exp(zeta * (h.evaluate(u)[0] - lean(h.log_psi.max(1).values)))

    def aim(self, h: Histogram, j: Array) -> Array:
        return 1.0 * (h.grid().numbers == j[:, None])
