"""The training rows that help and harm a run's predictions most, as a table and a page. See conf/influence.yaml."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
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
from bdl.run.directory import output_folder, refuse_links_of
from bdl.run.evaluate import recorded_data
from bdl.run.records import INFLUENCE
from bdl.run.stored import load_runs

COLUMNS = 12  # of an item that is no image, on the page


def influence(cfg: DictConfig) -> None:
    """Explain items of a split by the training rows of the run; write the table and the page."""
    run, split = Path(str(cfg.run)).expanduser(), cfg.explain
    refuse_links_of(run)
    out = output_folder(cfg.out, run / INFLUENCE, "the table and the page")
    posterior, config = load_runs([run], cfg.trust, cfg.device, cfg.skip_bad)
    data = recorded_data(config, posterior)
    train, every = (posterior.batches(data.slices(name)) for name in ("train", split))
    rows = chosen(every.sizes()[1], split, cfg.count, cfg.rows)
    items = items_at(every, rows)
    tests = Batches([[joined(part) for part in zip(*items.values(), strict=True)]], every.device, tuple, every.dtype)
    numbers, values, errors = strongest(influence_blocks(posterior, train, tests), cfg.top)  # (m, k) each
    table = pd.DataFrame(
        {
            "row": np.repeat(rows, values.shape[1]), "train_row": numbers.flatten().long(),
            "effect": np.where(values.flatten() > 0, "helps", "harms"),
            "influence": values.flatten(), "std_error": errors.flatten(),
        }
    )  # fmt: skip
    write_atomically(out / "influence.csv", table.to_csv(index=False).encode())
    of_train = looks(data, "train", items_at(train, sorted(set(table.train_row))))
    parts: list[list[Any]] = [list(table[table.row == row].itertuples()) for row in rows]
    lines = [[(line, of_train[line.train_row]) for line in part] for part in parts]
    about = f"{run.name}: {len(rows)} items of {split}, {train.sizes()[1]:,} training rows"
    groups = list(zip(rows, looks(data, split, items).values(), lines, strict=True))
    page = out / "influence.html"
    write_atomically(page, render("influence.html.jinja", about=about, groups=groups, split=split).encode())
    print(f"{len(rows)} items of {split}, and for each the training rows that help and harm it most: {page}")


def chosen(items: int, split: str, most: int, rows: Sequence[int] | None) -> list[int]:
    """The numbers of the items that are explained. Raises ConfigError for a number that the split has not."""
    if wrong := [row for row in rows or () if not 0 <= row < items]:
        raise ConfigError(f"rows={list(rows or ())}: {split} has the rows 0 to {items - 1}, and no {wrong[0]}")
    spaced = np.linspace(0, items - 1, min(most, items)).round().astype(int).tolist()
    return sorted(set(spaced if rows is None else rows))


def items_at(batches: Batches, rows: Sequence[int]) -> dict[int, tuple[Any, Any]]:
    """Inputs (1, ...) and target (1, ...) of the items with these numbers, in rising order."""
    found, first = {}, 0
    for inputs, y in batches:
        after = first + count_items(inputs)
        inside = [row for row in rows if first <= row < after]
        found |= {row: part_of((inputs, y), slice(row - first, row - first + 1)) for row in inside}
        first = after
    return found


def strongest(blocks: Iterable[InfluenceBlock], top: int) -> Tensor:
    """(3, m, k) numbers, influences and errors of the `top` training items at either end, the largest first.

    Memory does not depend on the number of training items.
    """
    found: dict[int, Tensor] = {}
    for tests, items, values, errors in blocks:
        numbers = torch.arange(items.start, items.stop).expand_as(values)
        new = torch.stack([numbers.double(), values, errors])
        every = torch.cat([found.get(tests.start, new[..., :0]), new], 2)
        order = every[1].argsort(dim=1, descending=True)
        ends = torch.cat([order[:, :top], order[:, -top:]], 1) if order.shape[1] > 2 * top else order
        found[tests.start] = every.gather(2, ends.expand(3, -1, -1))
    return torch.cat(list(found.values()), 1)


def looks(data: DataModule, split: str, items: dict[int, tuple[Any, Any]]) -> dict[int, dict[str, str]]:
    """What the page shows of items: `label`, and `picture`, a data URI, or `row`, their values."""
    frame, names, found = data.as_written(split, list(items)), getattr(data, "labels", ()), {}
    for place, (number, (x, y)) in enumerate(items.items()):
        value = y[0].tolist()
        found[number] = {"label": str(names[value] if isinstance(value, int) and value < len(names) else value)}
        if frame is not None:
            row = list(frame.iloc[place].items())[:COLUMNS]
            written = ", ".join(f"{name} {value}" for name, value in row)
            found[number] = {"label": f"line {frame.index[place] + 2} of the file", "row": written}
        elif isinstance(x, Tensor) and x.ndim == 4 and x.shape[1] in (1, 3):
            found[number]["picture"] = picture(x[0])
        elif isinstance(x, Tensor):
            found[number]["row"] = ", ".join(f"{value:.3g}" for value in x.flatten()[:COLUMNS].tolist())
    return found


def picture(x: Tensor) -> str:
    """An image (1 or 3, H, W), of any range, as a PNG in a data URI."""
    grey, file = x.double().cpu().movedim(0, -1), io.BytesIO()
    grey = (grey - grey.min()) / (grey.max() - grey.min()).clamp_min(1e-12)
    imsave(file, grey.expand(*grey.shape[:2], 3).numpy(), format="png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
