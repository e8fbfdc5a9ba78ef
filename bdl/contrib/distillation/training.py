"""How a student is trained on the predictions of an average, and on which items."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bdl.batch import Inputs, count_items, feed, joined, map_tensors, refuse_outputs, rows_of, tensors_in
from bdl.contrib.distillation.student import StudentOutputs
from bdl.display import count_of
from bdl.engine.functional import evaluating
from bdl.errors import ConfigError, DivergedError, check_fraction, check_positive
from bdl.seeding import derive_seed, generator

CHECKS = 100  # how often the divergence on the held-out items is measured
MADE = 20_000  # rows that are made of others by crossing; of more items one each
CHUNK = 1024  # items of which the student makes outputs together

Maker = Callable[[Inputs, Tensor, Tensor, torch.Generator], Inputs]


@dataclass(frozen=True)
class Distillation:
    """How a student is trained: AdamW, whose lr falls to 0 along a cosine, on the KL divergence from the teacher.

    A part of the items is held out; the student keeps the weights with the lowest divergence there, of CHECKS times.
    With the other items it learns items that are made of them, of which the teacher says what it predicts. Without them
    a student is surer than its teacher between the items, and on small tables it errs there. Two items a and b make a
    mixture x = u a + (1 - u) b with u uniform (mixup, Zhang et al. 2018), and in a table a crossing, which has each
    column from a or from b.

    Args:
        lr: step size at the start.
        weight_decay: decoupled, as in AdamW.
        batch_size: items of a step; at most the items.
        steps: their number.
        val_fraction: share of the items that is held out.
        mixtures: of items, for each item; 0 where inputs are no floating point numbers, such as tokens.
        crossings: of rows, for each row, as far as they are at most MADE, or one for each; none where the inputs are no
            rows (n, columns) of floating point numbers.
        seed: decides which items are held out, the items made of others, the batches, and dropout masks.

    Raises ConfigError for a value out of range.
    """

    lr: float = 0.003
    weight_decay: float = 0.0
    batch_size: int = 256
    steps: int = 8_000
    val_fraction: float = 0.1
    mixtures: int = 3
    crossings: int = 12
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in {"batch_size": 1, "steps": 1, "mixtures": 0, "crossings": 0}.items():
            if type(getattr(self, name)) is not int or getattr(self, name) < least:
                raise ConfigError(f"{name} must be a whole number of at least {least}, got {getattr(self, name)}")
        check_positive("lr", self.lr)
        if not 0 <= self.weight_decay < 1 / self.lr:
            raise ConfigError(f"weight_decay must be from 0 to 1 / lr, got {self.weight_decay}")
        check_fraction("val_fraction", self.val_fraction)

    def lessons(self, inputs: Inputs) -> tuple[Inputs, int]:
        """The inputs of all items and mixtures that the teacher is asked about; the first so many are held out.

        Raises ConfigError for too few items, and for inputs without a row for each.
        """
        items = count_items(inputs)
        if any(len(t) != items for t in tensors_in(inputs)):
            raise ConfigError("every input needs a row for each item, which distillation puts into batches of its own")
        order = torch.randperm(items, generator=generator("cpu", "distil", "split", self.seed))
        count = round(self.val_fraction * items)
        if not 0 < count < items:
            raise ConfigError(
                f"val_fraction = {self.val_fraction} of {count_of(items, 'item')} leaves one part empty: give more"
            )
        parts, kept = [rows_of(inputs, order)], order[count:]
        random = generator("cpu", "distil", "made", self.seed)
        for make in self._makers(inputs, len(kept)):
            parts.append(make(inputs, kept, kept[torch.randperm(len(kept), generator=random)], random))
        return joined(parts), count

    def _makers(self, inputs: Inputs, items: int) -> list[Maker]:
        """The functions that make further items from so many items, each as often as it is applied."""
        tensors = list(tensors_in(inputs))
        floating = all(t.is_floating_point() for t in tensors)
        crossings = min(self.crossings, max(1, MADE // items))
        rows = floating and all(t.ndim == 2 for t in tensors)
        return [mixture_of] * (self.mixtures * floating) + [crossing_of] * (crossings * rows)

    def train(
        self, net: nn.Module, inputs: Inputs, lesson: Tensor, outputs: StudentOutputs, held_out: int
    ) -> tuple[int, float]:
        """Train the network in place; returns the step whose weights it has, and its divergence there, nats an item.

        inputs: of n items, on the network's device. lesson: (n, ..., L), see `StudentOutputs`. The first `held_out` are
        not trained on.

        Raises DivergedError if the divergence was never finite.
        """
        device, kept = lesson.device, len(lesson) - held_out
        size, every = min(self.batch_size, kept), max(1, self.steps // CHECKS)
        optimizer = torch.optim.AdamW(net.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        random = generator("cpu", "distil", "batches", self.seed)
        best, best_step, state = math.inf, 0, copy.deepcopy(net.state_dict())
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(derive_seed("distil", "torch", self.seed))  # dropout draws from it
            for step in range(1, self.steps + 1):
                rows = held_out + torch.randint(kept, (size,), generator=random).to(device)
                net.train()
                optimizer.zero_grad()
                apart = outputs.divergence(student_outputs(net, rows_of(inputs, rows), outputs), lesson[rows])
                apart.mean().backward()
                optimizer.step()
                schedule.step()
                if step % every and step < self.steps:
                    continue
                now = mean_divergence(net, rows_of(inputs, slice(held_out)), lesson[:held_out], outputs)
                if now < best:  # False for NaN
                    best, best_step, state = now, step, copy.deepcopy(net.state_dict())
        if not best_step:
            raise DivergedError("the student's divergence from the average was never finite: lower lr")
        net.load_state_dict(state)
        net.eval()
        return best_step, best


def student_outputs(net: nn.Module, inputs: Inputs, outputs: StudentOutputs) -> Tensor:
    """(n, ..., width) with the numbers of an element on the last axis."""
    return outputs.likelihood.arranged(refuse_outputs(net, feed(net, inputs)))


@torch.no_grad()
def mean_divergence(net: nn.Module, inputs: Inputs, lesson: Tensor, outputs: StudentOutputs) -> float:
    """The mean over items, in eval mode, nats."""
    with evaluating(net):
        each = [
            outputs.divergence(student_outputs(net, rows_of(inputs, part), outputs), lesson[part]).flatten()
            for part in parts_of(len(lesson))
        ]
    return float(torch.cat(each).double().mean())


def parts_of(items: int) -> Iterator[slice]:
    return (slice(i, i + CHUNK) for i in range(0, items, CHUNK))


def mixture_of(inputs: Inputs, a: Tensor, b: Tensor, random: torch.Generator) -> Inputs:
    """u times the items a (n,), plus 1 - u times the items b, with u uniform for each."""
    u = torch.rand(len(a), generator=random)

    def mix(t: Tensor) -> Tensor:
        share = u.to(t).view(-1, *[1] * (t.ndim - 1))
        return share * t[a] + (1 - share) * t[b]

    return map_tensors(mix, inputs)


def crossing_of(inputs: Inputs, a: Tensor, b: Tensor, random: torch.Generator) -> Inputs:
    """Rows with each column from the row a (n,), or from b: from a with a probability that is uniform for each row."""
    share = torch.rand(len(a), 1, generator=random)

    def cross(t: Tensor) -> Tensor:
        first = torch.rand(len(a), t.shape[1], generator=random) < share
        return torch.where(first.to(t.device), t[a], t[b])

    return map_tensors(cross, inputs)
