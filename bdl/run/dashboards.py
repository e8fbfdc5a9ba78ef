"""What W&B and TensorBoard show of a finished run besides its metrics: report, pictures, the table of scores."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from PIL import Image

from bdl.posterior.report.page import score_table
from bdl.posterior.report.pictures import Picture, ReportData, pictures_of
from bdl.posterior.verdict import verdict


def log_report(loggers: Iterable[Logger], report: Path, data: ReportData, steps: int) -> None:
    """Hand the report to those of the loggers that show pages or pictures.

    report: the HTML file that shows the data.
    """
    shown = [logger for logger in loggers if isinstance(logger, WandbLogger | TensorBoardLogger)]
    pictures = pictures_of(data) if shown else []  # drawn again, as bitmaps: neither of the two shows SVG
    for logger in shown:
        if isinstance(logger, WandbLogger):
            _to_wandb(logger, report, data, pictures)
        else:
            _to_tensorboard(logger, data, pictures, steps)


def _to_wandb(logger: WandbLogger, report: Path, data: ReportData, pictures: list[Picture]) -> None:
    import wandb

    heading, rows = score_table(data.metrics)
    table: Any = wandb.Table(columns=heading, data=rows)  # type: ignore[arg-type]
    judged = verdict(data.metrics, data.histogram, data.warnings)
    run = logger.experiment
    run.log(
        {
            "report": wandb.Html(report.read_text(), inject=False),
            "scores": table,
            **{f"pictures/{p.title}": wandb.Image(_bitmap(p), caption=p.caption) for p in pictures},
        }
    )
    run.summary["verdict"] = judged.line


def _to_tensorboard(logger: TensorBoardLogger, data: ReportData, pictures: list[Picture], steps: int) -> None:
    writer = logger.experiment
    for picture in pictures:
        writer.add_image(f"pictures/{picture.title}", np.asarray(_bitmap(picture)), steps, dataformats="HWC")
    writer.add_text("verdict", verdict(data.metrics, data.histogram, data.warnings).line, steps)
    writer.flush()


def _bitmap(picture: Picture) -> Image.Image:
    """The picture on white."""
    drawn = Image.open(io.BytesIO(picture.png)).convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", drawn.size, "white"), drawn).convert("RGB")
