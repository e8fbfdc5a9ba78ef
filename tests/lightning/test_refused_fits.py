"""What a Trainer refuses to fit with a Sampler: in one line, and no file is written."""

from collections.abc import Iterator
from typing import Any

import lightning as L
import pytest
import torch
import torch.distributed as dist
import toys
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy, StrategyRegistry
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

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


WORKS = "run it on one device, or on several with strategy=ddp; of a large network sample a part, with only=...$"
STRATEGIES = {
    "fsdp": "fsdp",
    "fsdp_cpu_offload": "fsdp_cpu_offload",
    "deepspeed_stage_3": "deepspeed_stage_3",
    "an object of FSDP": FSDPStrategy(),
    "an object of FSDP2": ModelParallelStrategy(),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_that_divides_the_network_is_refused_in_one_line(name, monkeypatch, tmp_path):
    """Lightning itself refuses these strategies without a GPU, so they are put into a Trainer that has none."""
    strategy: Any = STRATEGIES[name]
    if isinstance(strategy, str):
        kind = StrategyRegistry[strategy]["strategy"]
        strategy = kind.__new__(kind)  # DeepSpeed need not be installed
    module = toys.module()
    monkeypatch.setattr(module, "build_sampler", lambda *_, **__: pytest.fail("parameters may be in parts by now"))
    module.trainer = toys.trainer(tmp_path, 8)
    monkeypatch.setattr(L.Trainer, "strategy", strategy)
    with pytest.raises(
        bdl.ConfigError, match=f"{type(strategy).__name__} may give a device a part.*{WORKS}"
    ) as refused:
        module.configure_optimizers()
    assert "\n" not in str(refused.value)


@pytest.fixture
def group() -> Iterator[None]:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sharded() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3))
    fully_shard(net, mesh=init_device_mesh("cpu", (1,)))
    return net


def wrapped() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3))
    return FullyShardedDataParallel(net, device_id=torch.device("cpu"), use_orig_params=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("build", [sharded, wrapped])
@pytest.mark.parametrize(
    "use",
    [
        lambda net: bdl.Sampler(net.parameters(), bdl.SGHMC(), num_data=5, lr=0.1),
        lambda net: bdl.Sampler(net.named_parameters(), bdl.SGHMC(), num_data=5, lr=0.1),
        lambda net: bdl.ChainStack(net, 2),
        lambda net: bdl.ChainStack(net, 2, start="given"),
        lambda net: bdl.BayesianModule(net, bdl.Sampler),
    ],
    ids=["parameters", "named parameters", "stack", "given stack", "module"],
)
def test_a_network_that_its_user_has_divided_is_refused_in_one_line(use, build, group):
    with pytest.raises(bdl.ConfigError, match=f"is a .*, which lies in parts on several devices.*{WORKS}") as refused:
        use(build())
    assert "\n" not in str(refused.value)
