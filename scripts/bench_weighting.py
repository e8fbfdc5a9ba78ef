"""Adaptive weighting with nothing set by hand, beside plain sampling at T = 1 and with T tuned.

python scripts/bench_weighting.py SET [SET ...] [--data DIR] [--seeds 0 1] [--out DIR]

Sets are airfoil, energy, bike, cifar10_head and landsat. Every cell is one call of scripts/train.py, whose trials choose
on training rows alone. The scores are those of rows that neither trials nor chains saw: a part of the training rows of
the set (`data.fold`), so that no published test row counts. DIR/weighting.json holds the numbers, DIR/weighting.md the
table; cells that were measured before stay in both.
"""

from __future__ import annotations

from pathlib import Path

SCRIPTS = Path(__file__).parent
