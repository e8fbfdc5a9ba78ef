"""The training rows that help and harm a run's predictions most, as a table and a page. See conf/influence.yaml."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.image import imsave
from omegaconf import DictConfig
from torch import Tensor

from bdl.batch import count_items, joined, part_of
from bdl.contrib.influence.covariance import InfluenceBlock, influence_blocks
from bdl.data.module import DataModule
from bdl.disk.files import write_atomically
from bdl.errors import ConfigError
from bdl.posterior.outputs import Batches
from bdl.posterior.report.page import render
from bdl.run.directory import refuse_links_of
from bdl.run.evaluate import recorded_data
from bdl.run.records import INFLUENCE
from bdl.run.spreadsheet import without_formulas
from bdl.run.stored import load_runs

TABLE, PAGE = "influence.csv", "influence.html"
COLUMNS = 12  # of a table's row that the page shows
LOADERS = {"train": "train_dataloader", "val": "val_dataloader", "test": "test_dataloader"}


@dataclass(frozen=True)
class Strongest:
    """The training items with the largest and the smallest influence on each test item, from the largest on."""

    items: Tensor  # (m, k) their numbers
    values: Tensor  # (m, k) nats
    std_error: Tensor  # (m, k)

    def joined(self, block: InfluenceBlock, top: int) -> Strongest:
        """The strongest of these and of the items of a block."""
        numbers = torch.arange(block.items.start, block.items.stop).expand(block.values.shape)
        values = torch.cat([self.values, block.values], 1)
        order = values.argsort(dim=1, descending=True)
        if order.shape[1] > 2 * top:
            order = torch.cat([order[:, :top], order[:, -top:]], 1)
        parts = torch.cat([self.items, numbers], 1), values, torch.cat([self.std_error, block.std_error], 1)
        return Strongest(*(part.gather(1, order) for part in parts))


def strongest(blocks: Iterable[InfluenceBlock], top: int) -> Strongest:
    """`top` items at either end, for each test item; memory does not depend on the number of training items."""
    found: dict[int, Strongest] = {}
    for block in blocks:
        none = torch.empty(len(block.values), 0, dtype=torch.float64)
        before = found.get(block.tests.start, Strongest(none.long(), none, none))
        found[block.tests.start] = before.joined(block, top)
    each = list(found.values())
    return Strongest(*(torch.cat([getattr(s, name) for s in each]) for name in ("items", "values", "std_error")))


def influence(cfg: DictConfig) -> None:
    """Explain items of a split by the training rows of the run; write the table and the page."""
    run = Path(str(cfg.run)).expanduser()
    refuse_links_of(run)
    out = run / INFLUENCE if cfg.out is None else Path(str(cfg.out)).expanduser()
    posterior, config = load_runs([run], cfg.trust, cfg.device, cfg.skip_bad)
    data = recorded_data(config, posterior)
    train, split = posterior.batches(data.slices("train")), posterior.batches(data.slices(cfg.explain))
    rows = chosen(split.sizes()[1], cfg.explain, cfg.items, cfg.rows)
    tests = items_at(split, rows)
    inputs, targets = (joined([tests[row][i] for row in rows]) for i in (0, 1))
    one = Batches([(inputs, targets)], posterior.device, lambda batch: batch, split.dtype)
    found = strongest(influence_blocks(posterior, train, one), cfg.top)
    table = as_table(found, rows, cfg.explain)
    write_atomically(out / TABLE, without_formulas(table).to_csv(index=False).encode())
    shown = items_at(train, sorted(set(found.items.flatten().tolist())))
    looks = {"train": looks_of(data, "train", shown), cfg.explain: looks_of(data, cfg.explain, tests)}
    groups = [
        (row, looks[cfg.explain][row], part) for row, part in zip(rows, parts_of(table, looks["train"]), strict=True)
    ]
    about = f"{run.name}: {len(rows)} items of {cfg.explain}, {train.sizes()[1]:,} training rows"
    write_atomically(out / PAGE, render("influence.html.jinja", about=about, groups=groups, split=cfg.explain).encode())
    print(f"{len(rows)} items of {cfg.explain}, {cfg.top} training rows each that help and harm most: {out / PAGE}")


def chosen(items: int, split: str, most: int, rows: Sequence[int] | None) -> list[int]:
    """The numbers of the items that are explained. Raises ConfigError for a number that the split has not."""
    if rows is None:
        return sorted(set(np.linspace(0, items - 1, min(most, items)).round().astype(int).tolist()))
    if wrong := [row for row in rows if not 0 <= row < items]:
        raise ConfigError(f"rows={list(rows)}: {split} has the rows 0 to {items - 1}, and no {wrong[0]}")
    return list(dict.fromkeys(rows))


def items_at(batches: Batches, rows: Sequence[int]) -> dict[int, tuple[Any, Any]]:
    """Inputs (1, ...) and target of the items with these numbers, by number."""
    found, first = {}, 0
    for inputs, y in batches:
        after = first + count_items(inputs)
        inside = {row: slice(row - first, row - first + 1) for row in rows if first <= row < after}
        found |= {row: part_of((inputs, y), at) for row, at in inside.items()}
        first = after
    return found


def as_table(found: Strongest, rows: Sequence[int], split: str) -> pd.DataFrame:
    """A line for each pair, the most helpful row first; influences in nats."""
    k = found.items.shape[1]
    columns = {
        f"{split}_row": np.repeat(rows, k),
        "train_row": found.items.flatten().numpy(),
        "effect": ["helps" if value > 0 else "harms" for value in found.values.flatten().tolist()],
        "influence": found.values.flatten().numpy(),
        "std_error": found.std_error.flatten().numpy(),
    }
    return pd.DataFrame(columns)


def parts_of(table: pd.DataFrame, looks: dict[int, Any]) -> list[list[tuple[Any, Any]]]:
    """For each test item its lines of the table, with what the training row looks like."""
    name = str(table.columns[0])
    return [
        [(line, looks[line.train_row]) for line in part.itertuples()] for _, part in table.groupby(name, sort=False)
    ]


def looks_of(data: DataModule, split: str, items: dict[int, tuple[Any, Any]]) -> dict[int, dict[str, str]]:
    """What the page shows of items: `label`, and `picture`, a data URI, or `row`, the values of a table's row."""
    numbers = list(items)
    frame = data.as_written(split, numbers)
    names = getattr(data, "labels", ())
    found = {}
    for i, (number, (x, y)) in enumerate(items.items()):
        value = y[0].tolist()
        shown = {"label": str(names[value]) if isinstance(value, int) and value < len(names) else f"{value}"}
        if frame is not None:
            values = frame.iloc[i]
            row = [f"{name} {value}" for name, value in list(values.items())[:COLUMNS]]
            shown |= {"row": ", ".join(row), "label": f"line {frame.index[i] + 2} of the file"}
        elif isinstance(x, Tensor) and x.ndim == 4 and x.shape[1] in (1, 3):
            shown["picture"] = picture(x[0])
        elif isinstance(x, Tensor):
            shown["row"] = ", ".join(f"{value:.3g}" for value in x[0].flatten()[:COLUMNS].tolist())
        found[number] = shown
    return found


def picture(x: Tensor) -> str:
    """An image (1 or 3, H, W), of any range, as a PNG in a data URI."""
    grey = x.double().cpu().movedim(0, -1)
    grey = (grey - grey.min()) / (grey.max() - grey.min()).clamp_min(1e-12)
    file = io.BytesIO()
    imsave(file, grey.expand(*grey.shape[:2], 3).numpy(), format="png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
