"""`bench.py train`: Landsat through Trainer.fit, against a bare loop and against Lightning with a DataLoader.

`bench.py graphs`: the same on a GPU, with CUDA graphs and without.
"""

import functools
import tempfile
from typing import Any, Literal

import torch
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.data import LandsatDataModule
from bdl.models import MLP
from benchmarks.speed.problem import landsat
from benchmarks.speed.timing import PlainModule, Times, fit, interleave, ratio, timed
from benchmarks.speed.torch_kernels import BareLoop

SIZES = (36, 30, 30, 6)
CHAINS, BATCH = 8, 100


def bench_train(rounds: int) -> tuple[Times, dict[str, float]]:
    data = LandsatDataModule(BATCH)
    contestants = {
        "bare loop, 1 chain": timed(BareLoop(landsat()).step, 300),
        "Lightning + DataLoader + self.log, 1 chain": lambda: fit_plain(data, 300),
        f"bdl Trainer.fit, {CHAINS} chains, SGHMC": lambda: fit_bdl(300, bdl.Flat()),
        f"bdl Trainer.fit, {CHAINS} chains, AWSGHMC": lambda: fit_bdl(300, bdl.AdaptiveWeight(low=0.0, high=8000.0)),
    }
    times = interleave(contestants, rounds)
    bare, plain = times["bare loop, 1 chain"], times["Lightning + DataLoader + self.log, 1 chain"]
    ratios = {}
    for name, t in times.items():
        if name.startswith("bdl"):
            ratios[f"{name}: chain-step / bare loop"] = ratio(t, bare) / CHAINS
            ratios[f"{name}: chain-step / Lightning"] = ratio(t, plain) / CHAINS
    return times, ratios


def fit_plain(data: LandsatDataModule, steps: int) -> float:
    x, y = data.tensors("train")
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True, drop_last=True)
    with tempfile.TemporaryDirectory() as folder:
        return fit(PlainModule(MLP(SIZES), len(x)), loader, steps, [], CSVLogger(folder))


def bench_graphs(rounds: int, device: torch.device) -> tuple[Times, dict[str, float]]:
    """Landsat on a GPU through Trainer.fit, the gradient's kernels as a CUDA graph and launched one by one."""
    contestants, ratios, steps = {}, {}, 2000
    options = {"accelerator": "gpu", "wait": torch.cuda.synchronize} if device.type == "cuda" else {}
    for name, weighting in {"SGHMC": bdl.Flat(), "AWSGHMC": bdl.AdaptiveWeight(low=0.0, high=8000.0)}.items():
        for way, compile in {"graph": "auto", "one by one": False}.items():
            contestants[f"{name}, {way}"] = functools.partial(fit_bdl, steps, weighting, compile, **options)
        ratios[name] = f"{name}, graph", f"{name}, one by one"
    times = interleave(contestants, rounds)
    return times, {f"{name}: graph / one by one": ratio(times[a], times[b]) for name, (a, b) in ratios.items()}


def fit_bdl(steps: int, weighting, compile: bool | Literal["auto"] = "auto", **options: Any) -> float:
    data = LandsatDataModule(BATCH, chains=CHAINS)
    build = functools.partial(
        bdl.Sampler, dynamics=bdl.SGHMC(), num_data=data.num_data, lr=0.1, temperature=0.2, weighting=weighting
    )
    module = bdl.BayesianModule(bdl.ChainStack(MLP(SIZES), CHAINS), build, compile=compile)
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [
            bdl.Schedule(lr=bdl.schedules.Constant(0.1), temperature=bdl.schedules.Constant(0.2)),
            bdl.Monitor(50),
            bdl.callbacks.StepProgress(),
        ]
        return fit(module, data.train_dataloader(), steps, callbacks, CSVLogger(folder), **options)
