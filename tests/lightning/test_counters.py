"""Lightning's private counters: checked before they are moved, and left alone where they are others."""

import pytest
import toys
from lightning.pytorch.loops import progress
from test_blocks import Seen

import bdl


def test_lightning_that_counts_otherwise_makes_every_step_itself(tmp_path, monkeypatch):
    monkeypatch.delattr(progress._ReadyCompletedTracker, "increment_by")
    seen = Seen()
    with pytest.warns(bdl.BdlWarning, match="counts its steps otherwise .* every step returns to Lightning's loop"):
        toys.trainer(tmp_path, 10, [seen]).fit(toys.module(), toys.batches())
    assert seen.after == list(range(1, 11))
