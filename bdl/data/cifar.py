"""CIFAR-10 and CIFAR-100, read from torchvision's folders and kept as bytes in memory."""

from __future__ import annotations

import contextlib
import hashlib
import io
import pickle
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor
from torchvision.datasets import CIFAR10, CIFAR100, SVHN
from torchvision.datasets.utils import download_and_extract_archive

from bdl.data.augment import Augment, Normalise
from bdl.data.loader import Batching, TensorSlices
from bdl.data.split import hold_out
from bdl.data.tensors import TensorDataModule
from bdl.disk.files import read_file, write_atomically
from bdl.errors import ConfigError, StoreError

# torchvision's classes name folder, files, checksums and address
SOURCES: dict[int, type[CIFAR10]] = {10: CIFAR10, 100: CIFAR100}
# Mean and standard deviation per channel of the pixels of the 50,000 training images, on the scale 0..1.
PIXELS = {
    10: ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    100: ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
NAMES = {  # the classes' names, in the order of their labels
    10: """
        airplane automobile bird cat deer dog frog horse ship truck
    """.split(),
    100: """
        apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
        castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
        elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
        man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
        pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
        skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
        tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """.split(),
}


class CIFARDataModule(TensorDataModule):
    """CIFAR-10 or CIFAR-100: 50,000 training and 10,000 test images of 32x32, normalised by channel.

    Args:
        root: folder that holds torchvision's `cifar-10-batches-py` or `cifar-100-python`.
        classes: 10 or 100, or torchvision's name of the data set.
        batch_size: images per chain and step; None means all images, "auto" 128.
        augment: random changes to the training images; None shows the images as they are.
        val_fraction: share of the training images held out.
        split_seed, fold: which images are held out, as in `hold_out`. Nothing else decides it.
        download: fetch files that are missing.
        loader: "tensor" keeps all images as bytes on the device, where a batch is selected and augmented at once;
            "torch" is a DataLoader whose workers make the same batches, for images that do not fit on the device.
        workers: processes of the "torch" loader.
        cache: folder of the decoded copy, which loads without unpickling; None means `root`. The copy is optional: a
            folder that cannot be written stays without one.
        batching: chains, seed, stack and replacement, as in `TensorBatches`.
        channels_last: memory layout of the inputs. Parameters are views of one contiguous buffer, so they keep theirs.

    `num_data` counts images. Full-data energies and evaluation see the images as they are.

    Augmentation changes the meaning of T. At every step an image appears in a random version. N times the mean loss is
    then neither the log-likelihood of N items nor that of all their versions: the versions of an image tell more than
    the image alone, and less than as many independent images. The effective number of data is unknown. With
    augmentation cold posteriors, T << 1, predict better than T = 1 (Wenzel et al. 2020); without it this effect almost
    vanishes (Izmailov et al. 2021). Compare temperatures under the same augmentation only, and set `augment=null` if
    T = 1 should be the Bayes posterior.

    Raises ConfigError for data that are missing, cut short or altered, and names `data.root`; also for another loader,
    number of classes, fraction or batch size than those above.
    """

    def __init__(
        self,
        root: str | Path,
        classes: int | str = 10,
        batch_size: int | Literal["auto"] | None = "auto",
        augment: Augment | None = None,
        val_fraction: float = 0.0,
        split_seed: int = 0,
        download: bool = False,
        loader: Literal["tensor", "torch"] = "tensor",
        workers: int = 2,
        cache: str | Path | None = None,
        channels_last: bool = True,
        fold: int = 0,
        **batching: Unpack[Batching],
    ):
        if loader not in ("tensor", "torch"):
            raise ConfigError(f'loader must be "tensor" or "torch", got {loader!r}')
        count = {"cifar10": 10, "cifar100": 100}.get(str(classes).lower(), classes)
        if isinstance(count, str) or count not in SOURCES:
            raise ConfigError(f"classes must be 10 or 100, got {classes!r}")
        root = Path(root).expanduser()
        data = load_cifar(root, count, download=download, cache=cache)
        x, y = data["x_train"], data["y_train"]
        kept, held_out = hold_out(len(y), val_fraction, split_seed, fold)
        train = (x[kept], y[kept]) if len(held_out) else (x, y)  # no copy of all images
        splits = {"train": train, "val": (x[held_out], y[held_out]), "test": (data["x_test"], data["y_test"])}
        super().__init__(
            splits, batch_size=128 if batch_size == "auto" else batch_size, labels=NAMES[count],
            augment=augment,
            transform=Normalise(*PIXELS[count], channels_last), workers=workers if loader == "torch" else None,
            **batching,
        )  # fmt: skip
        self.root, self.name = root, SOURCES[count].__name__.lower()

    def ood(self) -> TensorSlices | None:
        """SVHN's 26,032 test images for out-of-distribution scores, normalised as CIFAR; None if `root` lacks them."""
        images = load_svhn(self.root)
        return None if images is None else TensorSlices(*images, transform=self.transform)


def load_cifar(
    root: str | Path, classes: int, *, download: bool = False, cache: str | Path | None = None
) -> dict[str, Tensor]:
    """x_train (50000, 3, 32, 32), x_test (10000, 3, 32, 32) uint8; y_train, y_test int64 in 0..classes-1.

    They come from the decoded copy if there is one.

    Raises ConfigError, naming `data.root`, for files that are missing, cut short or altered.
    """
    root, source = Path(root), SOURCES[classes]
    copy = decoded_copy(cache or root, classes)
    data = _read_copy(copy, classes)
    if data is None:
        _make_available(root, source, download)
        data = {}
        for split, files in (("train", source.train_list), ("test", source.test_list)):
            batches = [_read_batch(root / source.base_folder / name, md5, classes) for name, md5 in files]
            data |= {f"{k}_{split}": torch.cat([b[i] for b in batches]) for i, k in enumerate("xy")}
        with contextlib.suppress(StoreError):  # the folder is read-only, or the disk is full
            write_atomically(copy, safetensors.torch.save(data))
    return {name: value.long() if name.startswith("y") else value for name, value in data.items()}


def decoded_copy(folder: str | Path, classes: int) -> Path:
    """The file in `folder` that holds x_train, y_train, x_test, y_test uint8; `load_cifar` reads it before all else.

    Eight hexadecimal digits in its name identify the files from which it was made.
    """
    source = SOURCES[classes]
    key = hashlib.sha256(repr([*source.train_list, *source.test_list]).encode()).hexdigest()[:8]
    return Path(folder) / f"{source.__name__.lower()}-{key}.safetensors"


def load_svhn(root: Path) -> tuple[Tensor, Tensor] | None:
    """x (26032, 3, 32, 32) uint8 and y (26032,) int64 of SVHN's test split; None if the file is missing."""
    _, name, md5 = SVHN.split_list["test"]
    if not (root / name).exists():
        return None
    _checked(root / name, md5)
    images = SVHN(str(root), "test")
    return torch.from_numpy(images.data), torch.from_numpy(images.labels)


def _make_available(root: Path, source: type[CIFAR10], download: bool) -> None:
    """Download the files if some are missing and `download` allows it. Raises ConfigError if they stay missing."""
    name, folder = source.__name__, source.base_folder
    files = [root / folder / file for file, _ in [*source.train_list, *source.test_list]]
    missing = [file for file in files if not file.exists()]
    if not missing:
        return
    if not download:
        raise ConfigError(
            f"{name} is not in {root.resolve()}, {folder}/{missing[0].name} is missing: set data.root to the folder "
            f"that holds {folder}, or data.download=true"
        )
    try:
        download_and_extract_archive(source.url, str(root), filename=source.filename, md5=source.tgz_md5)
    except (OSError, RuntimeError) as error:  # no network, no space, another checksum
        raise ConfigError(
            f"{name} cannot be downloaded to {root.resolve()} ({' '.join(str(error).split())}): put {folder} there "
            "by hand, or set data.root to the folder that holds it"
        ) from error


def _read_batch(path: Path, md5: str, classes: int) -> tuple[Tensor, Tensor]:
    """x (n, 3, 32, 32) uint8 and y (n,) uint8 of one of CIFAR's own files."""
    entry = _Unpickler(io.BytesIO(_checked(path, md5)), encoding="latin1").load()
    labels = entry["labels"] if "labels" in entry else entry["fine_labels"]
    x, y = torch.from_numpy(np.array(entry["data"], np.uint8)), torch.tensor(labels)
    if len(x) != len(y):
        raise ConfigError(f"{path} holds {len(x)} images and {len(y)} labels: replace it, or set data.root elsewhere")
    if y.min() < 0 or y.max() >= classes:
        raise ConfigError(
            f"{path} holds labels from {y.min()} to {y.max()}, outside of its {classes} classes: replace it, or set "
            "data.root elsewhere"
        )
    return x.view(-1, 3, 32, 32), y.to(torch.uint8)


def _checked(path: Path, md5: str) -> bytes:
    """The file's bytes. Raises ConfigError if the file cannot be read or its checksum is not md5."""
    try:
        data = read_file(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): set data.root elsewhere") from error
    checksum = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if checksum != md5:
        raise ConfigError(
            f"{path} is cut short or altered, {len(data)} bytes whose md5 is {checksum}, not {md5}: remove it and set "
            "data.download=true, or set data.root to a folder with the whole file"
        )
    return data


class _Unpickler(pickle.Unpickler):
    """Makes numpy arrays, dicts, lists, numbers and texts. Refuses everything else, so a file cannot run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np.ndarray.__reduce__(np.empty(0))[0]  # numpy renamed the module that holds it
        raise ConfigError(f"a CIFAR file asks for {module}.{name}, which no CIFAR file needs: replace it")


def _read_copy(path: Path, classes: int) -> dict[str, Tensor] | None:
    """The decoded copy; None if it is missing, cut short, or holds other images."""
    try:
        data = safetensors.torch.load_file(path)
    except (OSError, SafetensorError):
        return None
    if set(data) != {"x_train", "y_train", "x_test", "y_test"} or any(v.dtype != torch.uint8 for v in data.values()):
        return None
    pairs = [(data[f"x_{split}"], data[f"y_{split}"]) for split in ("train", "test")]
    fits = all(x.shape == (len(y), 3, 32, 32) and len(y) and int(y.max()) < classes for x, y in pairs)
    return data if fits else None
