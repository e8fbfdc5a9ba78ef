"""The smallest data of each of four kinds, as files, and the options of a command line that samples them."""

from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image
from torch import nn

ROWS = 60
KINDS = ("numbers", "classes", "images", "text")


class SmallCNN(nn.Sequential):
    """x (B, 3, 8, 8) -> logits (B, num_classes)."""

    def __init__(self, num_classes: int, dropout: float):
        layers = nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Dropout(dropout), nn.Linear(36, num_classes)
        super().__init__(*layers)


def write_data(folder: Path, kind: str) -> tuple[str, ...]:
    """Write the data to an empty folder. Returns the options that name them, and a small network."""
    random = np.random.RandomState(0)
    if kind == "text":
        (folder / "t.txt").write_text(" ".join(random.choice("the cat sat on a mat and ran off".split(), 200)))
        return (
            "data=text", f"data.path={folder / 't.txt'}", "data.context=8", "model.width=8", "model.layers=1",
            "model.heads=2", "start.epochs=30",
        )  # fmt: skip
    if kind == "images":
        for k, name in enumerate(("ant", "bee", "cow")):
            (folder / "images" / name).mkdir(parents=True)
            for i in range(ROWS // 3):
                pixels = np.clip(random.normal(80 + 40 * k, 40, (8, 8, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / "images" / name / f"{i}.png")
        return (
            "data=image_folder", f"data.path={folder / 'images'}", "data.size=8", "model=cnn",
            "model._target_=four_kinds.SmallCNN",
        )  # fmt: skip
    x = random.randn(ROWS, 3)
    frame = pd.DataFrame(x, columns=list("abc"))
    signal = 5 * x[:, 0] - 3 * x[:, 1] * x[:, 2] + random.randn(ROWS)
    frame["y"] = 100 + signal if kind == "numbers" else np.where(signal > 2, "u", np.where(x[:, 1] > 0, "v", "w"))
    frame.to_csv(folder / "table.csv", index=False)
    return "data=csv", f"data.path={folder / 'table.csv'}", "data.target=y", "model.hidden=[4]", "start.epochs=100"
