"""DensityPosterior: the samples of a density by the names of its parameters; and DensityReport, which judges them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bdl
from bdl.contrib.density.network import Density, DensityNetwork
from bdl.display import Shown
from bdl.law.thermometer import FEW_STATES, GRADIENTS
from bdl.lean import L
from bdl.lightning.blocks import StepCallback
from bdl.lightning.host import callbacks_of, find_sampler
from bdl.posterior.diagnostics import Draws, repeat_error
from bdl.posterior.export import as_tree, sample_stats
from bdl.posterior.judgements import PARAMETERS
from bdl.posterior.report.numbers import of_chains
from bdl.posterior.traces import TraceColumns, write_trace
from bdl.posterior.verdict import Verdict, verdict
from bdl.run.in_python import law_of
from bdl.run.records import METRICS, write_metrics

STATES, SHARE = 12, 0.25  # of a chain, whose T is read by all rows, and the most of the run's gradients they may take


class DensityPosterior(Shown):
    """The samples of a density, by the names of its parameters.

    Attributes:
        posterior: the same samples as networks, whose tensors are the free values; `posterior.outputs(rows)` has log
            densities of rows.
        metrics: what was measured, as metrics.json has it: R-hat, ESS, temperatures, Monte Carlo errors.
    """

    def __init__(self, posterior: bdl.Posterior, density: Density, metrics: Mapping[str, float]):
        self.posterior, self.density, self.metrics = posterior, density, dict(metrics)

    @property
    def verdict(self) -> Verdict:
        """The verdict of `bdl.report` in terms of the parameters."""
        return verdict(self.metrics)

    @torch.no_grad()
    def draws(self) -> dict[str, np.ndarray]:
        """(chains, draws, ...) values of each parameter inside its constraints, cut to the shortest chain."""
        found: dict[str, Draws] = defaultdict(lambda: Draws(self.posterior.chains))
        assert isinstance(self.posterior.net, DensityNetwork)
        for group in self.posterior.stored.groups(self.posterior.weights("uniform").by_key):
            parameters = self.density.constrained(self.posterior.net.free(group.tensors))
            for name, values in parameters.items():
                found[name].add(group.chains, values.cpu().numpy())
        return {name: draws.array() for name, draws in found.items()}

    def sample_stats(self) -> dict[str, np.ndarray]:
        """(chains, draws) energy, lr, temperature, and weight: of importance if the run has valid ones, else equal."""
        kind = "importance" if np.isfinite(self.metrics.get("weight_ess", np.nan)) else None
        return sample_stats(self.posterior.keyed(), self.posterior.chains, self.posterior.weights(kind).by_key)

    def to_arviz(self) -> Any:
        """An ArviZ DataTree of the draws (chain, draw, ...) with the names and dimensions of the parameters.

        `sample_stats` has energy, lr, temperature and weight. `arviz_stats.summary` of it does not weigh the draws.
        """
        tables = {"posterior": self.draws(), "sample_stats": self.sample_stats()}
        return as_tree(tables, dims=dict(self.density.dims), coords=dict(self.density.coords))

    def summary(self) -> Any:
        """A pandas table with a row for each number of each parameter: mean, sd, and what they are worth.

        r_hat is rank-normalised; ess_bulk and ess_tail are of Vehtari et al. 2021; mcse_mean is the Monte Carlo error
        of the mean. Under valid importance weights mean and sd are weighted, and mcse_mean comes from the spread of the
        chains' weighted means.
        """
        from arviz_stats.summary import summary  # slow to import

        table: Any = summary(self.to_arviz(), group="posterior", round_to="none")  # type: ignore[arg-type]
        table = table[["mean", "sd", "r_hat", "ess_bulk", "ess_tail", "mcse_mean"]].copy()
        w = self.sample_stats()["weight"][..., None]  # (chains, draws, 1)
        if np.ptp(w):
            x, w = flat(self.draws()), w / w.sum()
            means = (w * x).sum(1) / w.sum(1)
            table["mean"] = mean = (w * x).sum((0, 1))
            table["sd"] = np.sqrt((w * np.square(x - mean)).sum((0, 1)))
            table["mcse_mean"] = means.std(0, ddof=1) / np.sqrt(len(x)) if len(x) > 1 else np.nan
        return table

    def shown(self) -> tuple[str, Mapping[str, str]]:
        m, p = self.metrics, self.posterior
        heat = f"T_eff {m['t_eff']:.3g}, kinetic {m['kinetic_temperature']:.3g}"
        mixed = f"R-hat {m['rhat/max']:.3f} at most, ESS {m['ess/min']:,.0f} bulk, {m['ess/tail_min']:,.0f} tail"
        lines = {"temperature": f"T {m['temperature']:g}, {heat}", "chains": mixed, "verdict": self.verdict.line}
        return f"Posterior of {', '.join(self.draws())}: {p.samples:,} draws of {p.chains} chains", lines


def flat(draws: Mapping[str, np.ndarray]) -> np.ndarray:
    """(chains, draws, P) all numbers of all parameters side by side."""
    return np.concatenate([values.reshape(*values.shape[:2], -1) for values in draws.values()], -1).astype(float)


def judge(posterior: DensityPosterior, trace: TraceColumns | None, law: Mapping[str, float]) -> dict[str, float]:
    """What is measured of the parameters, flat by name. trace: of `Monitor`. law: what `measure_law` says."""
    x = flat(posterior.draws())  # (chains, draws, P)
    std = x.std((0, 1))
    x, std = x[..., std > 0], std[std > 0]  # the upper triangle of a Cholesky factor is 0
    error = repeat_error(x.mean(1)[..., None], std[:, None], x[:1] / std)
    metrics, _ = of_chains(posterior.posterior, x, x, error, trace)
    unknown = {"configurational_temperature": math.nan}  # <θ, ∇U>: few parameters far from 0 drown it in noise
    return {**metrics, **unknown, PARAMETERS: x.shape[-1], **law}


class DensityReport(StepCallback):
    """Judges the parameters when `fit` ends, unless a signal ended it; writes metrics.json and prints the verdict."""

    def __init__(self, density: Density):
        self.density, self.metrics = density, dict[str, float]()

    def must_see(self, step: int) -> bool:
        return False

    def on_fit_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if any(save.signum is not None for save in callbacks_of(trainer, bdl.SaveLast)):
            return
        run, sampler = Path(callbacks_of(trainer, bdl.CollectSamples)[0].run_dir or ""), find_sampler(trainer)
        trace = callbacks_of(trainer, bdl.Monitor)[0].trace()
        write_trace(run, sampler.stack, trace)
        networks = bdl.Posterior.opened(run, pl_module.net, likelihood=pl_module.loss)
        posterior = DensityPosterior(networks, self.density, {})
        work = sampler.steps * (self.density.batch_size or self.density.num_data)  # rows whose gradients were taken
        states = min(STATES, int(SHARE * work / (GRADIENTS * self.density.num_data)))
        law = law_of(trainer, pl_module, networks, sampler, states if states >= FEW_STATES else None)
        self.metrics = judge(posterior, trace, law)
        judged = verdict(self.metrics)
        self.metrics |= judged.numbers
        write_metrics(run / METRICS, self.metrics)
        print(judged.line)
