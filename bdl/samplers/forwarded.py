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
