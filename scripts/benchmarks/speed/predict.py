"""Predictions of many samples, against the loops that one would write by hand: for bench.py."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

import bdl
from bdl.models import MLP, ResNet
from bdl.posterior.export import PosteriorModule
from bdl.posterior.store import SampleStore
from benchmarks.speed.timing import Times, interleave, ratio, timed

SIZES = (36, 30, 30, 6)
FILES, CHAINS, ROWS = 100, 8, 2000
NETWORKS, IMAGES = 100, 32


def bench_predict(rounds: int) -> tuple[Times, dict[str, float]]:
    """Milliseconds per call, and their ratios to the loop's. Every number of bdl's predictions is part of the time."""
    x = torch.randn(ROWS, SIZES[0])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_samples(folder, FILES, CHAINS)
        streamed, cached = (bdl.Posterior.load(folder, MLP(SIZES), likelihood=bdl.CategoricalNLL()) for _ in range(2))
        cached.cache()
        module, images = averaged_resnets(), torch.randn(IMAGES, 3, 32, 32)
        networks, one = f"{FILES * CHAINS} samples", f"{FILES * CHAINS} samples, one row"
        times = interleave(
            {
                f"load-and-forward loop, {networks} x {ROWS} rows": timed(load_and_forward(folder, x), 1),
                f"bdl predict, {networks} x {ROWS} rows": timed(lambda: streamed.predict(x), 1),
                f"bdl predict, {networks} x {ROWS} rows, cached": timed(lambda: cached.predict(x), 1),
                f"load-and-forward loop, {one}": timed(load_and_forward(folder, x[:1]), 1),
                f"bdl predict, {one}": timed(lambda: streamed.predict(x[:1]), 1),
                f"bdl predict, {one}, cached": timed(lambda: cached.predict(x[:1]), 1),
                f"forward loop, {NETWORKS} ResNet20 x {IMAGES} images": timed(forwards(images), 1),
                f"bdl as_module, {NETWORKS} ResNet20 x {IMAGES} images": timed(lambda: module(images), 1),
            },
            rounds,
        )
    many, single, resnets = (t for contestant, t in times.items() if "loop" in contestant)
    loops = {"one row": single, "ResNet20": resnets}
    ours = {contestant: t for contestant, t in times.items() if contestant.startswith("bdl")}
    return times, {
        f"{k} / loop": ratio(t, next((v for n, v in loops.items() if n in k), many)) for k, t in ours.items()
    }


def write_samples(folder: Path, files: int, chains: int) -> None:
    """A run directory with samples of random networks, as a run of so many chains writes it."""
    store, generator = SampleStore(folder), torch.Generator().manual_seed(0)
    shapes = {name: p.shape for name, p in MLP(SIZES).named_parameters()}
    for step in range(files):
        state = {name: 0.3 * torch.randn(chains, *shape, generator=generator) for name, shape in shapes.items()}
        store.write(state, step=step, stack=0, chains=list(range(chains)), lr=0.1, temperature=1.0)
    store.write_target({})


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


def averaged_resnets() -> PosteriorModule:
    """What `as_module` makes of samples of ResNet20."""
    nets = [ResNet(20) for _ in range(NETWORKS)]
    stacked = {name: torch.stack([net.state_dict()[name] for net in nets]) for name in nets[0].state_dict()}
    return PosteriorModule(nets[0], stacked, torch.ones(NETWORKS), bdl.CategoricalNLL())


def forwards(images: Tensor) -> Callable[[], Tensor]:
    """Mean probabilities of as many networks that all lie in memory: one forward pass each, and nothing else."""
    nets = [ResNet(20).eval() for _ in range(NETWORKS)]

    @torch.no_grad()
    def predict() -> Tensor:
        return sum((net(images).softmax(-1) for net in nets), torch.zeros(())) / NETWORKS

    return predict
