"""Lightning's private counters: checked before they are moved, and left alone where they are others."""

from __future__ import annotations

import pytest
import toys
from lightning.pytorch.loops import progress
from test_blocks import Seen

import bdl


def test_a_lightning_that_counts_otherwise_makes_every_step_itself(tmp_path, monkeypatch):
    monkeypatch.delattr(progress._ReadyCompletedTracker, "increment_by")
    seen = Seen()
    with pytest.warns(bdl.BdlWarning, match="counts its steps otherwise .* every step returns to Lightning's loop"):
        toys.trainer(tmp_path, 10, [seen]).fit(toys.module(), toys.batches())
    assert seen.after == list(range(1, 11))


def test_a_global_step_that_counts_something_else_is_noticed(tmp_path, monkeypatch):
    seen, trainer = Seen(), toys.trainer(tmp_path, 10)
    trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = 3
    monkeypatch.setattr(type(trainer.fit_loop.epoch_loop), "global_step", 0)
    trainer.callbacks.append(seen)
    with pytest.warns(bdl.BdlWarning, match="global_step counts something else"):
        trainer.fit_loop.max_epochs = 1
        trainer.fit(toys.module(), toys.batches())
