"""Inputs of a prediction in the forms in which people have them: NumPy arrays, pandas tables, lists of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bdl.disk.files import SMALL_FILE, parse_json, read_file
from bdl.errors import ConfigError
from bdl.posterior.store import SampleStore


class AsTensors:
    """Makes tensors of one array, table or list of rows, or of several in a tuple or a dict, as a network takes them.

    Their numbers get the dtype of the network's parameters. Bytes stay as they are, and so do whole numbers where the
    network has an embedding, which looks them up. Tensors and loaders pass through.

    stores: the stores of the posterior.

    Raises ConfigError for texts and other objects, for rows of different lengths, and for a pandas table where the run
    is one on a table, whose columns have to be encoded first.
    """

    def __init__(self, net: nn.Module, stores: Sequence[SampleStore]):
        self.dtype, self.stores = floating_dtype(net), stores
        self.looks_up = any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in net.modules())

    def __call__(self, data: Any) -> Any:
        if is_array(data):
            return self._tensor(data)
        if isinstance(data, Mapping):
            return {name: self._tensor(part) if is_array(part) else part for name, part in data.items()}
        if type(data) is tuple:
            return tuple(self._tensor(part) if is_array(part) else part for part in data)
        return data

    def _tensor(self, value: Any) -> Tensor:
        if is_table(value):
            self._refuse_unencoded()
            if texts := [name for name, dtype in value.dtypes.items() if dtype.kind not in "biuf"]:
                raise ConfigError(f"column {texts[0]} of the inputs holds no numbers: encode it as in training")
        try:
            array = np.asarray(value)
        except ValueError as error:  # rows of different lengths
            raise ConfigError(f"the inputs are no array of numbers ({error}): give all rows the same length") from error
        if array.dtype.kind not in "biuf":
            raise ConfigError(f"the inputs hold {array.dtype}, not numbers: encode them as in training")
        if array.dtype == np.uint8:
            return torch.from_numpy(array.copy())
        codes = self.looks_up and array.dtype.kind in "iu"
        return torch.from_numpy(array.astype(np.int64 if codes else np.float64)).to(
            torch.int64 if codes else self.dtype
        )

    def _refuse_unencoded(self) -> None:
        for store in self.stores:
            path = store.run_dir / "preprocessing.json"
            try:
                content = parse_json(read_file(path, SMALL_FILE)) if path.exists() else None
            except (OSError, ValueError) as error:
                raise ConfigError(f"{path} is damaged ({error}): restore it") from error
            if isinstance(content, dict) and content.get("kind") == "table":
                raise ConfigError(
                    f"the networks of {store.run_dir} take encoded columns, not the table itself: "
                    f'bdl.predict_table("{store.run_dir}", rows) encodes them and predicts'
                )


def floating_dtype(net: nn.Module) -> torch.dtype:
    """The dtype of the network's parameters, torch's default without any."""
    return next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.get_default_dtype())


def is_table(value: Any) -> bool:
    """Whether it is a pandas DataFrame, or behaves like one."""
    return hasattr(value, "dtypes") and hasattr(value, "columns")


def is_array(value: Any) -> bool:
    """Whether it is one array of values. A list of numbers, of rows or of texts is; a list of batches is not."""
    while isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, Tensor):
        return False
    return isinstance(value, Number | str) or is_table(value) or hasattr(value, "__array__")
