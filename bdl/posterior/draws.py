"""Draws: values of the networks of a posterior, chain by chain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


class Draws:
    """Values (...) of networks that arrive in any order of the chains."""

    def __init__(self, chains: int):
        self._of_chain: list[list[Any]] = [[] for _ in range(chains)]

    def add(self, chains: Iterable[int], values: Iterable[Any]) -> None:
        """Add the value of one network of each of these chains, or of several of one chain, in their order."""
        for chain, value in zip(chains, values, strict=True):
            self._of_chain[chain].append(value)

    def array(self, draws: int | None = None) -> np.ndarray:
        """(chains, draws, ...) the first values of every chain; None for as many as the shortest chain has."""
        shortest = min(len(values) for values in self._of_chain)
        return np.array([values[: shortest if draws is None else draws] for values in self._of_chain])
