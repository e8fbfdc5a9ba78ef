"""Attributes of an object that are those of one of its parts."""

from __future__ import annotations

from typing import Any


def forwarded(part: str, name: str, doc: str) -> Any:
    """A property that reads and sets the attribute `name` of the attribute `part`."""

    def get(self: Any) -> Any:
        return getattr(getattr(self, part), name)

    def put(self: Any, value: Any) -> None:
        setattr(getattr(self, part), name, value)

    return property(get, put, doc=doc)


def per_chain(part: str, name: str, doc: str) -> Any:
    """A property that reads the attribute `name` (C,) of the part: () where there is one chain, None for None."""

    def get(self: Any) -> Any:
        value = getattr(getattr(self, part), name)
        return None if value is None else self.chain.per_chain(value)

    return property(get, doc=doc)
