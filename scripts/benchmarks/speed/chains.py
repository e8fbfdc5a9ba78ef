"""`bench.py chains`: three ways to run a stack of networks: batched matrix products, vmap and a loop."""

from __future__ import annotations

import functools

import torch

import bdl
from bdl.models import MLP, ResNet
from benchmarks.speed.timing import Times, interleave, no_wait, ratio, timed

SIZES = (36, 30, 30, 6)
CHAINS, BATCH = 8, 100


def bench_chains(rounds: int, device: torch.device) -> tuple[Times, dict[str, float]]:
    nets = {
        "MLP": (MLP(SIZES), torch.randn(CHAINS, BATCH, 36), 30),
        "ResNet8": (ResNet(8), torch.randn(4, 16, 3, 32, 32), 1),
    }
    wait = torch.cuda.synchronize if device.type == "cuda" else no_wait
    contestants, ratios = {}, {}
    for name, (net, x, count) in nets.items():
        for method in ("bmm", "vmap", "loop") if name == "MLP" else ("vmap", "loop"):
            stack = bdl.ChainStack(net, len(x), method=method).to(device)
            step = functools.partial(forward_backward, stack, x.to(device))
            contestants[f"{name} x {len(x)}, {method}"] = timed(step, count, wait)
    times = interleave(contestants, rounds)
    for name, t in times.items():
        loop = times[name.rsplit(", ", 1)[0] + ", loop"]
        ratios[f"{name} / loop"] = ratio(t, loop)
    return times, ratios


def forward_backward(stack: bdl.ChainStack, x: torch.Tensor) -> None:
    stack.zero_grad()
    stack(x).square().mean().backward()
