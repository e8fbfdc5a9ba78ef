"""A walk: many steps of a chain in one call of compiled code, which finds the gradients and makes the updates.

Each step is the one that `gradient_move` makes with `CompiledUpdate`, or `full_batch_move` with `CompiledMCLMC`, to the
bit, noise included. What watches the steps is told of them after the walk: the estimate of the batch noise gets the
gradients that it reads, and the watch over energies its losses. A step that is not finite is left to `gradient_move`,
which says why.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bdl.samplers.batch_noise import EVERY, WEIGHTS
from bdl.samplers.divergence import CHECK_EVERY
from bdl.samplers.moves import is_rechecked
from bdl.samplers.readings import Readings
from bdl.samplers.settings import StepSettings

Walk = Callable[[Sequence[Tensor], Tensor, int, int], int]  # (gradients, losses, after, context): see `Gradient.walk`
READ = 2**20  # numbers that the gradients which a walk keeps for the batch noise have at most: 4 MiB
FEWEST = 2  # steps that are worth a walk


def longest(sampler: Readings) -> int:
    """How many steps a walk may have; 0 where one would not pay."""
    steps = READ * EVERY // (len(WEIGHTS) * sampler.chain.theta.numel())  # so many gradients of EVERY are kept
    return steps if steps >= FEWEST else 0


def is_single(sampler: Readings, step: int) -> bool:
    """Whether no walk may make this step, because it does more than others. step: how many come before it."""
    return sampler.dynamics.full_batch and is_rechecked(step)


def can_walk(sampler: Readings, settings: Sequence[StepSettings]) -> bool:
    """Whether compiled code makes the update in each of the steps, and nothing else has a part in them."""
    potential, chain, full_batch = sampler.potential, sampler.chain, sampler.dynamics.full_batch
    compiled = sampler.kernel if full_batch else sampler.compiled
    distinct = {id(now): now for now in settings}.values()
    return (
        chain.steps > 0  # the first step sees whether anything tells the chains apart
        and sampler.replicas is None
        and sampler.control is None
        and potential.clip is None
        and not sampler.reweighting.weighting.needs_energy
        and all(compiled.takes(potential.prior, potential.num_data, *now.pair) for now in distinct)
    )


@torch.no_grad()
def walk(sampler: Readings, gradients: Walk, settings: Sequence[StepSettings]) -> int:
    """Make the steps with these settings. Returns how many compiled code has made: 0 where it cannot make them.

    gradients: `Gradient.walk` on the steps' batches. A step that compiled code leaves, as it does one whose gradient is
    not finite, is for `Sampler.advance` to make on its batch.
    """
    if not can_walk(sampler, settings):
        return 0
    if sampler.dynamics.full_batch:
        return walk_kernel(sampler, gradients, settings)
    chain, compiled, steps = sampler.chain, sampler.compiled, len(settings)
    losses = chain.theta.new_empty(steps, chain.chains or 1)
    read = {k: torch.empty_like(chain.g) for k in range(steps) if sampler.batch_noise.reads(chain.steps + k)}
    seen = (ctypes.c_void_p * steps)(*(read[k].data_ptr() if k in read else None for k in range(steps)))
    knows = compiled.prepare([(now.lr, now.temperature / sampler.num_data) for now in settings], losses, seen)  # type: ignore[misc]
    made = 0 if not knows else gradients(chain.g_views, losses, compiled.after, compiled.address)
    report(sampler, settings[:made], losses, read)
    return made


def walk_kernel(sampler: Readings, gradients: Walk, settings: Sequence[StepSettings]) -> int:
    """`walk` of a kernel that takes all the data. A step that is not finite is undone, as in a single step."""
    chain, kernel = sampler.chain, sampler.kernel
    if chain.stray.has_moved(chain.theta) or not bool(torch.isfinite(chain.state.potential).all()):
        return 0
    losses = chain.theta.new_empty(len(settings) * kernel.stages, chain.chains or 1)
    kernel.prepare([(now.lr, now.temperature / sampler.num_data) for now in settings], losses)  # type: ignore[misc]
    made = gradients(chain.g_views, losses, kernel.after, kernel.address) // kernel.stages
    if made < len(settings):
        kernel.put_back()
    if made:
        sampler.used, sampler.potential.energy = settings[made - 1], None
        chain.state.steps += made
        chain.stray.left_at = chain.theta.clone()
        chain.note_walk(made)
    return made


def report(sampler: Readings, settings: Sequence[StepSettings], losses: Tensor, read: dict[int, Tensor]) -> None:
    """Tell the pieces of a sampler of the steps that compiled code has made."""
    chain, potential = sampler.chain, sampler.potential
    for k, now in enumerate(settings):
        step = chain.steps + k
        if k in read:
            sampler.batch_noise.observe(step, read[k])
        if step % CHECK_EVERY == 0:
            potential.energy_watch.see(step, losses[k].view(chain.lead), now.lr)
    if settings:
        sampler.used, potential.energy = settings[-1], None
        chain.note_walk(len(settings))
