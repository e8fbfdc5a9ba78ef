"""Recipe: a section of the configuration that says how to build one object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig

from bdl.errors import BdlError
from bdl.run.values import plain

T = TypeVar("T")


@dataclass(frozen=True)
class Recipe(Generic[T]):
    """How to build a T: the name of its class or function, `_target_`, and its arguments as plain values."""

    node: Mapping[str, Any]

    @classmethod
    def of(cls, section: DictConfig) -> Recipe[T]:
        """The recipe in a section, with its interpolations resolved."""
        return cls(plain(section))

    @classmethod
    def optional(cls, section: DictConfig | None) -> Recipe[T] | None:
        """The recipe in a section; None where it is null or names nothing to build."""
        return cls.of(section) if section is not None and section.get("_target_") else None

    @property
    def target(self) -> str:
        return self.node["_target_"]

    def get(self, argument: str, default: object = None) -> Any:
        """The plain value of an argument."""
        return self.node.get(argument, default)

    def having(self, **arguments: object) -> Recipe[T]:
        """The recipe with these arguments in place of its own."""
        return Recipe({**self.node, **arguments})

    def build(self) -> T:
        """A new T. An error of bdl's is raised without what Hydra wraps around it, which not every process keeps."""
        try:
            return instantiate(dict(self.node), _convert_="all")
        except InstantiationException as error:
            if isinstance(error.__cause__, BdlError):
                raise error.__cause__ from None
            raise
