"""`bench.py update`: Sampler.step on ResNet20's tensors, against its floor and against other samplers for torch."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import bdl
from bdl.models import ResNet
from benchmarks.speed.timing import Times, interleave, plain_sghmc, ratio, timed


def bench_update(rounds: int) -> tuple[Times, dict[str, float]]:
    contestants = {"floor: normal_ + fused SGD": timed(floor(list(resnet_with_gradients().parameters())), 50)}
    contestants |= {f"bdl {name}": timed(step, 50) for name, step in ours().items()}
    contestants["per-tensor SGHMC loop"] = timed(per_tensor(), 50)
    for name, make in (("posteriors SGHMC", posteriors_sghmc), ("torch-uncertainty SGHMC", torch_uncertainty_sghmc)):
        try:
            contestants[name] = timed(make(), 50)
        except ImportError as error:
            print(f"{name} is left out ({error}): install it with pip install -e '.[bench]'")
    times = interleave(contestants, rounds)
    base = times["floor: normal_ + fused SGD"]
    return times, {f"{name} / floor": ratio(t, base) for name, t in times.items() if not name.startswith("floor")}


def resnet_with_gradients() -> nn.Module:
    net = ResNet(20)
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    return net


def floor(parameters: Sequence[nn.Parameter]) -> Callable[[], None]:
    """One draw of as many normal numbers as there are parameters, and torch's fused SGD."""
    optimizer = torch.optim.SGD(parameters, lr=1e-9, momentum=0.9, fused=True)
    z = torch.empty(sum(p.numel() for p in parameters))

    def step() -> None:
        z.normal_()
        optimizer.step()

    return step


def ours() -> dict[str, Callable[[], object]]:
    """Steps by the name of the sampler, all with a closure whose loss is known."""
    loss = torch.tensor(0.1)

    def step_of(dynamics: bdl.Dynamics, weighting: Any) -> Callable[[], object]:
        net = resnet_with_gradients()
        sampler = bdl.Sampler(net.parameters(), dynamics, num_data=50_000, lr=1e-9, weighting=weighting)
        return functools.partial(sampler.step, lambda: loss)

    bins = bdl.AdaptiveWeight(low=0.0, high=1e6)
    return {
        "SGHMC": step_of(bdl.SGHMC(), bdl.Flat()),
        "AWSGHMC": step_of(bdl.SGHMC(), bins),
        "SGNHT": step_of(bdl.SGNHT(), bdl.Flat()),
    }


@torch.no_grad()
def per_tensor() -> Callable[[], None]:
    net = resnet_with_gradients()
    momenta = {p: torch.zeros_like(p) for p in net.parameters()}
    return functools.partial(plain_sghmc, momenta, lr=1e-9, num_data=50_000)


def posteriors_sghmc() -> Callable[[], object]:
    """posteriors calls a log posterior: this one has the given gradients, at the cost of one dot product."""
    import posteriors  # type: ignore[import-not-found]

    net = resnet_with_gradients()
    grads = {k: p.grad for k, p in net.named_parameters()}

    def log_posterior(params: dict, batch: object) -> tuple[torch.Tensor, torch.Tensor]:
        return sum((grads[k] * v).sum() for k, v in params.items()), torch.zeros(())  # type: ignore[return-value]

    transform = posteriors.sgmcmc.sghmc.build(log_posterior, lr=1e-9)
    state = transform.init({k: p.detach().clone() for k, p in net.named_parameters()})
    return lambda: transform.update(state, None, inplace=True)


def torch_uncertainty_sghmc() -> Callable[[], object]:
    from torch_uncertainty.optim.sghmc import SGHMC  # type: ignore[import-not-found]

    return SGHMC(resnet_with_gradients().parameters(), lr=1e-9).step
