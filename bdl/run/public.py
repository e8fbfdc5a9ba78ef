"""The public names that a configuration may build, told without importing what defines them."""

from __future__ import annotations

import ast
import functools
import inspect
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

PUBLIC = ("bdl", "bdl.data", "bdl.models", "bdl.likelihoods", "bdl.schedules", "bdl.callbacks")
# The functions of these make objects and write nothing
FUNCTIONS = ("bdl.contrib.language", "bdl.data", "bdl.likelihoods", "bdl.models", "bdl.schedules")
LIGHTNING = {
    "lightning.Trainer", *(f"lightning.pytorch.loggers.{kind}Logger" for kind in ("CSV", "TensorBoard", "Wandb"))
}  # fmt: skip


def is_public(name: object) -> bool:
    """Whether this is a public class or function of bdl, a module of torch.nn, or Lightning's trainer or a logger.

    A name with one more dot, such as `bdl.disk.files.os.remove`, is none: it may lead out of the package.
    """
    package, _, last = str(name).rpartition(".")
    if package in PUBLIC:
        origin, kind = by_text(package, last) or by_import(package, last)
        return kind == "class" and origin.startswith("bdl.") or kind is not None and origin.startswith(FUNCTIONS)
    if package == "torch.nn":
        nn = import_module("torch.nn")
        value = getattr(nn, last, None)
        return inspect.isclass(value) and issubclass(value, nn.Module) and value.__module__.startswith("torch.nn.")
    return name in LIGHTNING


Kind = Literal["class", "callable", None]


def by_import(package: str, last: str) -> tuple[str, Kind]:
    """The module that a public name comes from, and what it is."""
    module = import_module(package)
    names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    value: Any = getattr(module, last, None) if last in names else None
    kind = "class" if inspect.isclass(value) else "callable" if callable(value) else None
    return getattr(value, "__module__", None) or "", kind


def by_text(package: str, last: str) -> tuple[str, Kind] | None:
    """`by_import`, from the text of bdl; None where that does not show it.

    `bdl predict` reads a table by itself: the data module of the run, which it only asks about, would import Lightning.
    """
    module = _sources(package).get(last)
    spec = None if module is None else find_spec(module)
    if module is None or spec is None or spec.origin is None:
        return None
    for node in ast.parse(Path(spec.origin).read_bytes()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == last:
            return module, "class" if isinstance(node, ast.ClassDef) else "callable"
    return None


@functools.cache
def _sources(package: str) -> dict[str, str]:
    """Public names of a package -> the module from which its stub takes them; {} for a package without a stub."""
    spec = find_spec(package)
    stub = Path((spec.origin if spec else None) or "").with_suffix(".pyi")
    body = ast.parse(stub.read_bytes()).body if stub.is_file() else []
    taken = [node for node in body if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module]
    return {name.name: f"{package}.{node.module}" for node in taken for name in node.names if name.asname is None}
