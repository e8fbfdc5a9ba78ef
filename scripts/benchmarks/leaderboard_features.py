"""Makes the features of the leaderboard's problem `cifar`: scripts/bench.py leaderboard_features IMAGES [--epochs 20].

IMAGES is the folder that holds CIFAR-10, as `data.root` of scripts/train.py, or an .npz file with x_train
(n, 3, 32, 32) uint8, y_train, x_test and y_test. A ResNet20 is trained on the first 2,500 training images by SGD with
momentum, a falling learning rate, crops and flips. scripts/results/leaderboard/features.npz then holds what its last
layer reads, 64 numbers for each of these images and of the first 500 test images, and the labels.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from tools.command import Said
from tools.results import RESULTS, save_arrays
from torch import Tensor
from torch.nn.functional import cross_entropy

from bdl.data import Augment, Normalise, TensorBatches
from bdl.data.cifar import load_cifar
from bdl.models import ResNet

ITEMS = {"train": 2500, "test": 500}
BATCH = 125
NORMALISE = Normalise((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))  # means and standard deviations of CIFAR-10


def main(
    images: Annotated[Path, Said(metavar="IMAGES")],
    *,
    epochs: int = 20,
    out: Annotated[Path, Said("default: %(default)s", "FILE")] = RESULTS / "leaderboard" / "features.npz",
) -> None:
    torch.manual_seed(0)
    data = load_images(images)
    net = train(data["x_train"], data["y_train"], epochs)
    arrays = {f"y_{part}": data[f"y_{part}"].numpy().astype(np.uint8) for part in ITEMS}
    arrays |= {f"x_{part}": features(net, data[f"x_{part}"]).half().numpy() for part in ITEMS}
    save_arrays(out, arrays)


def load_images(path: Path) -> dict[str, Tensor]:
    """The first images and labels of both parts: x (n, 3, 32, 32) uint8, y (n,) int64."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            data = {name: torch.from_numpy(archive[name]) for name in archive.files}
    else:
        data = load_cifar(path, 10)
    return {f"{v}_{p}": data[f"{v}_{p}"][:n].to(d) for p, n in ITEMS.items() for v, d in zip("xy", DTYPES, strict=True)}


DTYPES = (torch.uint8, torch.int64)


def train(x: Tensor, y: Tensor, epochs: int) -> ResNet:
    """A ResNet20 after so many epochs on the images."""
    net = ResNet(20).train()
    loader = TensorBatches(x, y, BATCH, augment=Augment(), transform=NORMALISE)
    steps = epochs * (len(y) // BATCH)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=steps)
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            cross_entropy(net(images), labels).backward()
            optimizer.step()
            schedule.step()
    return net.eval()


@torch.no_grad()
def features(net: ResNet, x: Tensor) -> Tensor:
    """(n, 64) what the last layer reads."""
    read: list[Tensor] = []
    hook = net.linear.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    for part in x.split(BATCH):
        net(NORMALISE(part))
    hook.remove()
    return torch.cat(read)
