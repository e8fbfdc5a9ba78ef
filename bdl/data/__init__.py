"""Data modules, loaders and augmentation. `__init__.pyi` lists them, and each is imported where it is first used."""

from __future__ import annotations

from bdl.parts import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
