"""Small CIFAR files in torchvision's layout. They are pickled as those on the web, and torchvision accepts them."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from torchvision.datasets import CIFAR10, CIFAR100, SVHN

PER_FILE, TEST = 12, 20  # images per training file of CIFAR-10, and of the test file
SOURCES = {10: CIFAR10, 100: CIFAR100}


def images(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)


def python2(x: np.ndarray, labels: list[int], key: str) -> bytes:
    """Python 2's pickle of {"data": array, key: labels}, as in the original files: it stores raw bytes as text."""

    def text(s: str) -> bytes:
        return b"U" + bytes([len(s)]) + s.encode()

    def number(i: int) -> bytes:
        return b"J" + i.to_bytes(4, "little", signed=True)

    raw = x.tobytes()
    dtype = b"cnumpy\ndtype\n(" + text("u1") + number(0) + number(1) + b"tR"
    dtype += b"(" + number(3) + text("|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    state = b"(" + number(1) + b"(" + number(len(x)) + number(3072) + b"t" + dtype + b"\x89"
    state += b"T" + len(raw).to_bytes(4, "little") + raw + b"t"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n("
        + number(0)
        + b"t"
        + text("b")
        + b"tR"
        + state
        + b"b"
    )
    return b"\x80\x02}(" + text("data") + array + text(key) + b"](" + b"".join(map(number, labels)) + b"eu."


def write_file(path: Path, content: bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return hashlib.md5(content).hexdigest()


class Folder:
    """A small CIFAR-10 or CIFAR-100 under a root, whose checksums torchvision is made to expect."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, classes: int = 10):
        self.root, self.classes, self.source, self._patch = root, classes, SOURCES[classes], monkeypatch
        self.names = {"train": [n for n, _ in self.source.train_list], "test": [n for n, _ in self.source.test_list]}
        self.x = {
            "train": images(PER_FILE * len(self.names["train"]) * (1 if classes == 10 else 5), 1),
            "test": images(TEST, 2),
        }
        self.y = {split: (np.arange(len(x)) * 7 % classes).tolist() for split, x in self.x.items()}
        self.write()

    @property
    def folder(self) -> Path:
        return self.root / self.source.base_folder

    def write(self) -> None:
        key = "labels" if self.classes == 10 else "fine_labels"
        for split, names in self.names.items():
            parts = zip(np.split(self.x[split], len(names)), np.split(np.array(self.y[split]), len(names)), strict=True)
            sums = [
                write_file(self.folder / name, python2(x, y.tolist(), key))
                for name, (x, y) in zip(names, parts, strict=True)
            ]
            self.know(split, sums)

    def replace(self, name: str, content: bytes) -> None:
        """Replace a file, and its expected checksum."""
        split = "test" if name in self.names["test"] else "train"
        sums = {n: s for n, s in getattr(self.source, f"{split}_list")}
        sums[name] = write_file(self.folder / name, content)
        self.know(split, list(sums.values()))

    def know(self, split: str, sums: list[str]) -> None:
        listed = [[name, md5] for name, md5 in zip(self.names[split], sums, strict=True)]
        self._patch.setattr(self.source, f"{split}_list", listed)

    def write_svhn(self, n: int = 6) -> np.ndarray:
        """Write SVHN's test file beside CIFAR and return its images (n, 3, 32, 32).

        The labels are 1, 10, 9, 2, 10, 5, ...; SVHN labels the digit 0 as 10.
        """
        x, path = images(n, 4), self.root / "test_32x32.mat"
        scipy.io.savemat(path, {"X": x.transpose(2, 3, 1, 0), "y": np.resize([1, 10, 9, 2, 10, 5], (n, 1))})
        md5 = hashlib.md5(path.read_bytes()).hexdigest()
        self._patch.setitem(SVHN.split_list, "test", ["", path.name, md5])
        return x
