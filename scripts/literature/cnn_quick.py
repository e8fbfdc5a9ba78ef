"""Small runs of scripts/train.py on images that are made here, for reproduce.py cnn --quick."""

import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from bdl.data.cifar import decoded_copy
from bdl.disk.files import write_atomically
from bdl.errors import ConfigError
from bdl.seeding import generator
from literature.experiment import Context

TRAIN = Path(__file__).parents[1] / "train.py"
ITEMS = {"train": 640, "test": 200}
EPOCHS = 20


@contextmanager
def quick_runs(cells: Sequence[str], context: Context) -> Iterator[Path]:
    """A folder with one finished run of each experiment, which is removed at the end.

    Raises ConfigError for a run that fails.
    """
    with tempfile.TemporaryDirectory(prefix="bdl-cnn-") as folder:
        write_images(Path(folder), context.seed)
        for cell in context.track(cells, "cnn: quick runs"):
            train(cell, Path(folder), context.seed)
        yield Path(folder)


def train(cell: str, folder: Path, seed: int) -> None:
    """Run experiment=cifar10/<cell> for a few epochs on the images in the folder, in a process of its own."""
    overrides = (
        f"experiment=cifar10/{cell}", f"data.root={folder}", f"hydra.run.dir={folder / cell}", f"seed={seed}",
        f"trainer.max_epochs={EPOCHS}", "train_items=100", "logger=none", "trainer=cpu",
    )  # fmt: skip
    result = subprocess.run([sys.executable, str(TRAIN), *overrides], capture_output=True, text=True)
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or [f"exit status {result.returncode}"])[-1]
        raise ConfigError(f"scripts/train.py experiment=cifar10/{cell} failed: {reason.removeprefix('bdl: ')}")


def write_images(folder: Path, seed: int) -> None:
    """Leave made images where the data module looks for the decoded copy of CIFAR-10."""
    data = {}
    for split, items in ITEMS.items():
        labels = torch.arange(items) % 10
        data |= {f"x_{split}": gratings(labels, split, seed), f"y_{split}": labels.to(torch.uint8)}
    write_atomically(decoded_copy(folder, 10), safetensors.torch.save(data))


def gratings(labels: Tensor, split: str, seed: int) -> Tensor:
    """(n, 3, 32, 32) uint8: stripes whose direction and width are those of the class, with random phase and noise."""
    g = generator("cpu", "gratings", split, seed)
    phase, noise = torch.rand(len(labels), 1, 1, generator=g), torch.randn(len(labels), 3, 32, 32, generator=g)
    angle, waves = (labels % 5 * math.pi / 5)[:, None, None], (2 + 3 * (labels // 5))[:, None, None]
    at = torch.arange(32) / 32
    along = angle.cos() * at[:, None] + angle.sin() * at  # (n, 32, 32)
    stripes = torch.sin(2 * math.pi * (waves * along + phase))
    return (128 + 50 * stripes[:, None] + 40 * noise).clamp(0, 255).to(torch.uint8)
