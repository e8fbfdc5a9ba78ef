"""Monitor: logs what the chains do every n steps, and keeps a trace for the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from torch import Tensor

from bdl.errors import check_whole
from bdl.lightning.blocks import SamplerCallback
from bdl.samplers.sampler import Sampler
from bdl.snapshot import numbers

TEMPERATURES = ("t_eff", "kinetic_temperature", "configurational_temperature")
PER_CHAIN = ("energy", "multiplier", "noise_ratio", *TEMPERATURES, "acceptance", "energy_error", "elbo")
DASHBOARDS = (WandbLogger, TensorBoardLogger)  # draw many series in one panel; a CSV file would get as many columns
SERIES = 16  # chains at most that have series of their own
ROWS = 4000  # length of the trace; a longer run keeps every second row, then every fourth, ...


class Monitor(SamplerCallback):
    """Logs energy, multiplier, lr, temperature, zeta, noise_ratio and three temperatures every `every` steps.

    W&B and TensorBoard get a series for each chain as well, such as `energy/chain_0`, for up to 16 chains.
    It also logs the acceptance of accept/reject kernels, the energy error of MCLMC, the ELBO of a variational
    approximation and the swap rates of replica exchange. Under replica exchange it follows the chains that sample the
    target distribution. Between the monitored steps it does nothing, so the device never waits. The trace is part of
    the checkpoint, and its length is bounded.

    Args:
        every: steps between two rows.

    Raises ConfigError for every < 1, and if the module returned no Sampler.
    """

    ends_block = False

    def __init__(self, every: int = 50):
        check_whole("every of Monitor", every)
        self.every = every
        self._table: Tensor | None = None  # (ROWS, 4 + PER_CHAIN x C): step, lr, temperature, zeta, and the chains'
        self._count, self._stride = 0, 1

    def after_step(self, trainer: L.Trainer, pl_module: L.LightningModule, step: int) -> None:
        values = measure(self.sampler)
        counted = {k: [x for x in v if x == x] or [math.nan] for k, v in values.items()}
        means = {f"chain/{k}": sum(v) / len(v) for k, v in counted.items()}
        rates = self.sampler.swap_rates
        swaps = {} if rates is None else {f"chain/swap_rate_{k}": r for k, r in enumerate(rates.tolist())}
        shows = any(isinstance(logger, DASHBOARDS) for logger in trainer.loggers)
        several = {k: v for k, v in values.items() if len(v) > 1 and shows}
        each = {f"{k}/chain_{c}": x for k, v in several.items() for c, x in self._numbered(v)}
        for logger in trainer.loggers:
            series = each if isinstance(logger, DASHBOARDS) else {}
            logger.log_metrics({k: v for k, v in (means | swaps | series).items() if v == v}, step)
        if step // self.every % self._stride == 0:
            self._add([step, *(x for v in values.values() for x in v)])

    def must_see(self, step: int) -> bool:
        return step % self.every == 0

    def _numbered(self, values: list[float]) -> list[tuple[int, float]]:
        """The numbers of the first chains, by the number of the chain among those of all stacks."""
        first = self.sampler.stack * (self.sampler.chains or 1)
        return [(first + c, value) for c, value in zip(measured_chains(self.sampler)[:SERIES], values, strict=False)]

    def trace(self) -> dict[str, Tensor]:
        """Columns by name: step, lr, temperature, zeta (n,); energy, multiplier, ... (n, C). Empty before any row."""
        table = self._rows()
        if table is None:
            return {}
        chains = table[:, 4:].split((table.shape[1] - 4) // len(PER_CHAIN), 1)
        columns = dict(zip(("step", "lr", "temperature", "zeta"), table[:, :4].T, strict=True))
        return {**columns, **dict(zip(PER_CHAIN, chains, strict=True))}

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self._rows(), "stride": self._stride}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._table, self._count, self._stride = None, 0, state_dict["stride"]
        for row in [] if state_dict["rows"] is None else state_dict["rows"].tolist():
            self._add(row)

    def _rows(self) -> Tensor | None:
        """A copy of what is written of the table; None before any row."""
        return None if self._table is None else self._table[: self._count].clone()

    def _add(self, row: list[float]) -> None:
        """Write a row, and let go of every second one where the table is full.

        One block for all rows: small ones, which stay, would lie among the large ones of samples, which come and go,
        and the process would grow by a hundred megabytes.
        """
        if self._table is None:
            self._table = torch.empty(ROWS, len(row), dtype=torch.float64)
        self._table[self._count] = torch.tensor(row, dtype=torch.float64)
        self._count += 1
        if self._count == ROWS:
            self._stride *= 2
            kept = self._table[self._table[:, 0] // self.every % self._stride == 0]
            self._count = len(kept)
            self._table[: self._count] = kept


def measured_chains(sampler: Sampler) -> Sequence[int]:
    """All chains, those that have diverged too; under replica exchange those of the first rung."""
    return range(sampler.chains or 1) if sampler.replicas is None else sampler.replicas.target


def measure(sampler: Sampler) -> dict[str, list[float]]:
    """lr, temperature and zeta as means over chains; all else with one number per chain of the target distribution.

    A number is NaN if it is unknown, and for a chain that has diverged and does not count.
    """
    group, chains, counting = sampler.param_groups[0], sampler.chains, set(sampler.target_chains)
    target = measured_chains(sampler)
    means = {k: [float(torch.as_tensor(group[k], dtype=torch.float64).mean())] for k in ("lr", "temperature", "zeta")}
    each = numbers({name: getattr(sampler, name) for name in PER_CHAIN}, chains)
    return means | {k: [v[c] if c in counting else math.nan for c in target] for k, v in each.items()}
