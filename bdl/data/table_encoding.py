"""TableEncoding: everything that a run knows about the columns of its table, without the rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from bdl.data.encoding import InputEncoding
from bdl.data.exposure import ExposureColumn
from bdl.data.frame import Reading
from bdl.data.lags import Lags
from bdl.data.targets import Target, target_from_plain, target_to_plain
from bdl.data.values import Frame
from bdl.errors import ConfigError

FORMAT_VERSION = 4
READ = (3, FORMAT_VERSION)  # versions that are read; a file of version 3 has less in it


@dataclass(frozen=True)
class TableEncoding:
    """Everything that a run knows about the columns of its table; its `preprocessing.json`.

    Args:
        inputs: makes inputs of the network from rows.
        target: what the network predicts.
        id: columns that name the rows.
        reading: how the files of the table are written.
        exposure: makes the offset of a log rate; None without one.
        lags: the inputs that come from earlier rows.
    """

    inputs: InputEncoding
    target: Target
    id: tuple[str, ...]
    reading: Reading
    lags: Lags | None = None
    exposure: ExposureColumn | None = None

    def encode(self, frame: Frame, key: str, place: str, last: bool = False) -> Tensor:
        """(n, features) float32 as the network reads them, as `InputEncoding.encode`; an offset is the last one."""
        if self.exposure is None:
            return self.inputs.encode(frame, key, place, last)
        offset = self.exposure.encode(frame, key, place)
        return torch.cat([self.inputs.encode(frame, key, place, last), offset], 1)

    def to_plain(self) -> dict[str, Any]:
        """As values that JSON can hold."""
        return {
            "format_version": FORMAT_VERSION,
            "kind": "table",
            "columns": self.inputs.to_plain(),
            "target": target_to_plain(self.target),
            "id": list(self.id),
            "reading": self._reading_to_plain(),
            **({} if self.exposure is None else {"exposure": asdict(self.exposure)}),
            **({} if self.lags is None else {"lags": self.lags.to_plain()}),
        }

    def _reading_to_plain(self) -> dict[str, Any]:
        plain = {**asdict(self.reading), "missing": list(self.reading.missing)}
        units = {name: list(way) for name, way in plain.pop("units").items()}
        return {**plain, "units": units} if units else plain  # checksums of other runs stay

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> TableEncoding:
        """The inverse of `to_plain`. Raises ConfigError for another version, and for missing or wrong fields."""
        version = plain.get("format_version")
        if version not in READ:
            raise ConfigError(
                f"format_version is {version}, and this bdl reads {READ[0]} and {READ[1]}: use the bdl that wrote it"
            )
        try:
            inputs, target = InputEncoding.from_plain(plain["columns"]), target_from_plain(plain["target"])
            given = plain["reading"]
            units = {name: tuple(way) for name, way in given.get("units", {}).items()}
            reading = Reading(**{**given, "missing": tuple(given["missing"]), "units": units})
            lags = Lags.from_plain(plain["lags"]) if "lags" in plain else None
            exposure = ExposureColumn(**plain["exposure"]) if "exposure" in plain else None
            return TableEncoding(inputs, target, tuple(plain["id"]), reading, lags, exposure)
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"no encoding of a table, {error} is missing or wrong: restore the file") from error


def checksum(plain: Mapping[str, Any]) -> str:
    """A checksum of what `TableEncoding.to_plain` gave, or of the same values read from a file.

    The ends of columns make no inputs, and have no part in it: older runs lack them.
    """
    named = {**plain, "columns": [_without_ends(column) for column in plain["columns"]]}
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:16]


def _without_ends(column: Mapping[str, Any]) -> dict[str, Any]:
    left = {key: value for key, value in column.items() if key not in ("low", "high")}
    return left | ({"parts": [_without_ends(part) for part in left["parts"]]} if "parts" in left else {})
