"""CheckpointStart: a network that starts at saved weights; and whether a file is a whole checkpoint of Lightning."""

from __future__ import annotations

import errno
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from bdl.disk.files import OF_TRANSFORMERS, is_on_disk, weights_of
from bdl.errors import ConfigError, without_advice
from bdl.frozen import matching

COUNTER = "num_batches_tracked"  # a buffer of BatchNorm, which old files lack


@dataclass(frozen=True)
class CheckpointStart:
    """Gives a network the parameters and buffers of a file.

    The file is a `state_dict` of torch (torchvision's weights are one), a Lightning checkpoint, a safetensors file, or
    a folder that `save_pretrained` of transformers wrote. A prefix that all names have in the file or in the network,
    such as `net.` or `module.`, is found and dropped. Files are read with `weights_only=True`: nothing in them is
    executed.

        >>> import tempfile
        >>> saved, net = nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     torch.save(saved.state_dict(), f"{folder}/weights.pt")
        ...     net = CheckpointStart(f"{folder}/weights.pt").load(net)
        >>> torch.equal(net[0].weight, saved.weight)
        True

    Args:
        path: the file or folder.
        skip: patterns of names that stay as they are, such as "fc.*" for a new head.
    """

    path: str
    skip: Sequence[str] = ()

    @torch.no_grad()
    def load(self, net: nn.Module) -> nn.Module:
        """The network itself, with these weights.

        Raises ConfigError in one line for a file that cannot be read, for one of another network, of which it names the
        first tensor that differs, and for a pattern of `skip` that matches nothing.
        """
        present, saved = net.state_dict(), read_state(Path(self.path).expanduser())
        skipped = matching(present, list(self.skip), "start.skip") if self.skip else set()
        saved = renamed(saved, present)
        for name in [*present, *saved]:
            there, here = (None if s.get(name) is None else tuple(s[name].shape) for s in (saved, present))
            if there == here or name in skipped or there is None and name.endswith(COUNTER):
                continue
            in_file, in_net = ("no place" if shape is None else f"the shape {shape}" for shape in (there, here))
            layer = f"{name.rpartition('.')[0]}.*" if "." in name else name
            remedy = f"start.skip=[{layer}] leaves it at its own start" if here else "build the network that was saved"
            raise ConfigError(
                f"start.path={self.path} holds another network: {name} has {in_file} in it, and {in_net} in "
                f"{type(net).__name__}; {remedy}"
            )
        for name, tensor in present.items():
            if name in saved and name not in skipped:
                tensor.copy_(saved[name])
        return net


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name. Raises ConfigError for a file that cannot be read or holds no tensors."""
    path = weights_of(path)
    if path.is_dir():
        raise ConfigError(f"start.path={path} is a folder without {' or '.join(OF_TRANSFORMERS)}: name the file")
    if path.exists() and not is_on_disk(path):
        raise ConfigError(f"start.path={path} is no regular file: save net.state_dict() to a file")
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise ConfigError(
            f"start.path={path} does not exist: give the file that net.state_dict() is saved in"
        ) from error
    except Exception as error:  # the parsers may raise anything
        cause = without_advice((str(error).strip() or "it is empty").splitlines()[0])
        raise ConfigError(
            f"start.path={path} cannot be read as weights alone ({cause}): save net.state_dict()"
        ) from error
    state = content.get("state_dict", content) if isinstance(content, Mapping) else None
    tensors = {k: v for k, v in state.items() if isinstance(v, Tensor)} if isinstance(state, Mapping) else {}
    if not tensors:
        raise ConfigError(f"start.path={path} holds no state_dict: save net.state_dict(), or a Lightning checkpoint")
    return tensors


def renamed(saved: Mapping[str, Tensor], present: Collection[str]) -> dict[str, Tensor]:
    """The saved tensors by the names of the network: without the prefix that they have there, or with the network's.

    What lies outside of the prefix, such as the metrics of a LightningModule, is left out.
    """
    without = {s[: -len(n)] for n in present for s in saved if s.endswith(f".{n}")}
    under = {n[: -len(s)] for s in saved for n in present if n.endswith(f".{s}")}
    readings = [dict(saved)]
    readings += [{s.removeprefix(p): t for s, t in saved.items() if s.startswith(p)} for p in sorted(without)]
    readings += [{p + s: t for s, t in saved.items()} for p in sorted(under)]
    return max(readings, key=lambda reading: sum(name in present for name in reading))


def found_checkpoint(path: Path, remedy: str) -> Path | None:
    """The path if there is a file; None without one. Raises ConfigError, with the remedy, unless it is whole."""
    if path.exists() and not is_checkpoint(path):
        raise ConfigError(f"{path} is truncated, altered or no checkpoint: restore that of this run, or {remedy}")
    return path if path.exists() else None


def is_checkpoint(path: Path) -> bool:
    """Whether this is a whole checkpoint of Lightning that holds only tensors and plain values."""
    try:
        if not is_on_disk(path) or zipfile.ZipFile(path).testzip():  # torch writes checksums but does not verify them
            return False
        return "pytorch-lightning_version" in torch.load(path, "cpu", weights_only=True, mmap=True)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a damaged table of contents leads to places before the file begins
            raise
        return False
    except Exception:  # the parsers may raise anything
        return False
