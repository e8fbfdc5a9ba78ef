"""This machine: settings of torch and of the C library, compiled networks, and what config.yaml records of it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

import bdl
from bdl.cpu import cpu
from bdl.engine import mlp_library
from bdl.errors import ConfigError
from bdl.fused import warn_of
from bdl.run.threads import thread_count
from bdl.torch_private import replace_compiled

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)
_LARGEST = 32 * 2**20  # bytes, the largest M_MMAP_THRESHOLD that glibc accepts
CPU = torch.device("cpu")
PACKAGES = ("torch", "lightning", "torchmetrics", "hydra-core", "numpy")


def prepare_torch(threads: int | None, tf32: bool, processes: int, compiled: bool | Literal["auto"] = "auto") -> None:
    """Set memory, threads, precision and evaluation of this process, one of `processes` on this machine.

    tf32: allow fp32 products of 10 bits' precision. By default cuDNN allows them and matmul does not.
    compiled: False leaves the evaluation of networks to torch.
    """
    keep_freed_memory()
    torch.set_num_threads(thread_count(threads, processes))
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    mlp_library.let_evaluate(compiled is not False)
    # Deterministic runs would fill every new tensor with NaN: 500 extra kernels in a step of ResNet20.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory for the next step. Returns False where there is no glibc.

    By default glibc returns large blocks to the kernel, which zeroes their pages when they are allocated again: 40 MB
    and 10,000 page faults in a step of ResNet20 at batch 128, 3 % of its time on one core.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST) and mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def return_freed_memory() -> None:
    """Give the memory that was freed back to the kernel, once; without glibc nothing happens.

    Under `keep_freed_memory` a process holds what it has ever held: 10 bytes for a cell of a table whose rows take 4.
    """
    if sys.platform.startswith("linux"):
        getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)(0)


@contextlib.contextmanager
def small_garbage() -> Iterator[None]:
    """Inside, Python's collector looks at new objects alone, and no more at those of the imports.

    It looks through everything once the new objects are a quarter of all. After the imports of torch and Lightning all
    are half a million, so the cycles that training leaves behind grew to some 40 MB in 80,000 steps of an MLP.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def find_device(name: str | None) -> torch.device:
    """The device of that name; for None the GPU if there is one. Raises ConfigError for a device that is missing."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros((), device=device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises AssertionError
        raise ConfigError(f"device={name} is not available: {str(error).splitlines()[0]}") from error
    return device


def compile_if_possible(net: nn.Module) -> None:
    """Let torch.compile run the network's calls; its parameters and their names do not change.

    Only calls that record gradients are compiled: training makes thousands of them in one shape. Evaluation is rare and
    uses other shapes, each of which would have to be compiled. torch compiles at the first call. If that fails, the
    network runs uncompiled, after one BdlWarning.
    """
    net.compile()

    def around(compiled: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return plain(*args, **kwargs)
            try:
                return compiled(*args, **kwargs)
            except Exception as error:  # no compiler, an operation it lacks, or a wrong call
                replace_compiled(net, None)
                outputs = net(*args, **kwargs)  # raises the error of a wrong call
                warn_of(error)
                return outputs

        return call

    replace_compiled(net, around)


def provenance(device: torch.device = CPU) -> dict[str, Any]:
    """Git commit, versions, threads and the name of the device, as config.yaml records them."""
    packages = {package: _version(package) for package in PACKAGES}
    return {
        "git_commit": git_commit(),
        # An editable install keeps the number of the day on which it was made, so bdl says its own
        "versions": {"bdl": bdl.__version__} | packages | {"python": platform.python_version()},
        "threads": torch.get_num_threads(),
        "device": device_name(device),
    }


def device_name(device: torch.device = CPU) -> str:
    """The maker's name of the GPU or of the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu().get("model name") or platform.processor() or platform.machine()


def git_commit() -> str | None:
    """The commit of the checkout that bdl is imported from; None for an installed bdl."""
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / "pyproject.toml").exists():  # the environment may lie inside of another project's repository
        return None
    try:
        result = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
