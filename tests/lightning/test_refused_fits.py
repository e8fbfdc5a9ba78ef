"""What a Trainer refuses to fit with a Sampler: in one line, and no file is written."""

from __future__ import annotations

import pytest
import toys
from torch import nn

import bdl
from bdl.schedules import Constant, EveryStep
from bdl.start import AdamWStart

SYNCHRONISED = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(toys.D, 3), nn.BatchNorm1d(3)))
BINS = bdl.AdaptiveWeight(low=10.0, high=200.0, bins=10)
CASES = [  # settings of the module, of the Trainer, and words of the message
    (dict(num_data=41), {}, f"num_data = 41, but the training data have {toys.N} items"),
    (dict(dynamics=bdl.HMC(2)), {}, "HMC needs all the data.*batch_size = 10 of 40"),
    (dict(net=SYNCHRONISED), {}, "sync_batchnorm=true knows one network, and 2 chains"),
    (dict(weighting=BINS), dict(accumulate_grad_batches=2), "accumulate_grad_batches=2 .* Flat weighting"),
    ({}, dict(gradient_clip_val=0.5), "gradient_clip_val takes one norm over all chains, which couples them"),
    ({}, dict(precision="bf16-true"), "bf16-mixed or 32-true"),
    (
        {},
        dict(callbacks=[bdl.CollectSamples(EveryStep(4, 5))]),
        "no sample in 8 steps: shorten burn_in or every, or run",
    ),
    ({}, dict(callbacks=[bdl.Schedule(lr=Constant(-0.1))]), "lr must be >= 0, got -0.1 at step 0"),
    ({}, dict(callbacks=[bdl.ModelAverage(EveryStep(0, 2))]), "loader="),
    ({}, dict(callbacks=[bdl.callbacks.EnsembleStart(AdamWStart(), "unused")]), "EnsembleStart needs a data module"),
]


@pytest.mark.parametrize(("module", "trainer", "words"), CASES, ids=[words for *_, words in CASES])
def test_what_does_not_fit_is_refused(tmp_path, module, trainer, words):
    settings = dict(callbacks=[bdl.CollectSamples(EveryStep(0, 1))]) | trainer
    with pytest.raises(bdl.ConfigError, match=words) as refused:
        toys.trainer(tmp_path, 8, **settings).fit(toys.module(**module), toys.batches())
    assert "\n" not in str(refused.value) and [p for p in tmp_path.rglob("*") if p.is_file()] == []
