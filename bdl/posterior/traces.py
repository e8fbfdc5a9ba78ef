"""The traces that the `Monitor` of each stack leaves in a run directory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from bdl.disk.manifest import Manifest, read_listed
from bdl.errors import ConfigError

TraceColumns = Mapping[str, Tensor]  # `step` (n,), other columns (n,) or (n, C)


def write_trace(run: Path, stack: int, trace: TraceColumns) -> None:
    """Write the trace of `Monitor` of one stack, for the process that writes the report."""
    columns = {name: column.contiguous() for name, column in trace.items()}
    Manifest(run, stack).write(_trace_of(stack), "trace", save(columns))


def read_traces(run: Path, stacks: Iterable[int]) -> list[dict[str, Tensor]]:
    """The traces of these stacks, as far as they were written."""
    try:
        written = [read_listed([Manifest(run, stack)], _trace_of(stack)) for stack in stacks]
        return [load(data) for data in written if data is not None]
    except SafetensorError as error:
        raise ConfigError(f"{run / _trace_of(0)} or its like is damaged ({error}): remove it") from error


def _trace_of(stack: int) -> str:
    return f"checkpoints/trace-{stack}.safetensors"


def side_by_side(traces: Sequence[TraceColumns]) -> dict[str, Tensor]:
    """The traces of several stacks as one trace of all their chains; the stacks must share one schedule."""
    columns = {name: [trace[name] for trace in traces] for name in traces[0]}
    return {name: parts[0] if parts[0].ndim == 1 else torch.cat(parts, 1) for name, parts in columns.items()}
