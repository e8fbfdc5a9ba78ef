"""Predictions of 800 samples on disk, against the loop that one would write by hand: for bench.py."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
from bench_tools import Times, interleave, ratio, timed
from torch import Tensor

import bdl
from bdl.models import MLP
from bdl.posterior.store import SampleStore

SIZES = (36, 30, 30, 6)
FILES, CHAINS, ROWS = 100, 8, 2000


def bench_predict(rounds: int) -> tuple[Times, dict[str, float]]:
    """Milliseconds per call, and their ratios to the loop's. Every number of bdl's predictions is part of the time."""
    x = torch.randn(ROWS, SIZES[0])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_samples(folder)
        streamed, cached = (bdl.Posterior.load(folder, MLP(SIZES), likelihood=bdl.CategoricalNLL()) for _ in range(2))
        cached.cache()
        networks, one = f"{FILES * CHAINS} samples", f"{FILES * CHAINS} samples, one row"
        times = interleave(
            {
                f"load-and-forward loop, {networks} x {ROWS} rows": timed(load_and_forward(folder, x), 1),
                f"bdl predict, {networks} x {ROWS} rows": timed(lambda: streamed.predict(x), 1),
                f"bdl predict, {networks} x {ROWS} rows, cached": timed(lambda: cached.predict(x), 1),
                f"load-and-forward loop, {one}": timed(load_and_forward(folder, x[:1]), 1),
                f"bdl predict, {one}": timed(lambda: streamed.predict(x[:1]), 1),
                f"bdl predict, {one}, cached": timed(lambda: cached.predict(x[:1]), 1),
            },
            rounds,
        )
    many, single = (t for contestant, t in times.items() if contestant.startswith("load"))
    ours = {contestant: t for contestant, t in times.items() if contestant.startswith("bdl")}
    return times, {f"{k} / loop": ratio(t, single if "one row" in k else many) for k, t in ours.items()}


def write_samples(folder: Path) -> None:
    """A run directory with samples of random networks, as a run of 8 chains writes it."""
    store, generator = SampleStore(folder), torch.Generator().manual_seed(0)
    shapes = {name: p.shape for name, p in MLP(SIZES).named_parameters()}
    fields = {"stack": 0, "chains": list(range(CHAINS)), "cycle": 0, "lr": 0.1, "temperature": 1.0, "zeta": 0.0}
    fields |= {"energy_batch": None, "energy_full": None, "log_weight": None, "psi_frozen": False}
    for step in range(FILES):
        store.write(
            {k: 0.3 * torch.randn(CHAINS, *s, generator=generator) for k, s in shapes.items()}, step=step, **fields
        )
    (store.folder / "target.json").write_text(json.dumps({}))


def load_and_forward(folder: Path, x: Tensor) -> Callable[[], Tensor]:
    """Mean probabilities as they are commonly computed: a network at a time, no checksums, no uncertainty."""
    net = MLP(SIZES).eval()

    @torch.no_grad()
    def predict() -> Tensor:
        total = torch.zeros(len(x), SIZES[-1])
        for path in sorted((folder / "samples").glob("*.safetensors")):
            stacked = safetensors.torch.load_file(path)
            for c in range(CHAINS):
                net.load_state_dict({name: values[c] for name, values in stacked.items()})
                total += net(x).softmax(-1)
        return total / (FILES * CHAINS)

    return predict
