"""Thermometer: reads the kept states of one stack by exact gradients, and lets its last ones go on exactly."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bdl.batch import count_items, part_of
from bdl.law.continuation import LEAPFROG, Continuation, continue_exactly
from bdl.law.directions import DirectionReading, GradientAt, Pair, read_blocks, read_directions, top_directions
from bdl.law.exact import ExactPotential
from bdl.posterior.index import Record
from bdl.posterior.predict import Posterior

TEMPERATURE_SHARE = (
    0.03  # Share of the gradients that the run has taken, counted in rows, that the temperatures may take
)
CONTINUATION_SHARE = 0.01  # The same for the continuation
GRADIENTS = 5  # Gradients of a state: one there, two along the noisiest directions, two along all coordinates
STATES = 100  # States of a chain at most: the error is then as small as the chains' own
FEW_STATES = 4  # With fewer states of a chain than this, PARTIAL states are read by a part of the data
PARTIAL = 8
PARTIAL_ROWS = 100  # Rows of such a part at least
TOP = 6  # Number of noisiest directions
NOISE_BATCHES = 24  # Batches from whose gradients these are found
FEWEST_BATCHES = 10  # Batches in the data at least, for these gradients: full batches show no direction
FEWEST_COORDINATES = 20  # Coordinates of a tensor with a temperature of its own: fewer say little of it
GRADIENT_NUMBERS = 2**28  # Most numbers in the gradients of NOISE_BATCHES batches of all chains
TRAJECTORIES, LONGEST = 8, 40  # Least and most of a continuation; fewer say nothing
DIRECTION_KINDS = ("noise", "curvature", "spread")


@dataclass(frozen=True)
class StackReadings:
    """What the states of one stack show, by kind of direction.

    names: of the directions of each kind. readings: one for each state and kind. temperature: (states, C) T there.
    """

    names: Mapping[str, Sequence[str]]
    readings: Mapping[str, Sequence[DirectionReading]]
    temperature: Tensor


class Thermometer:
    """Reads the states of one stack.

    Args:
        posterior: the run's samples.
        potential: U of as many networks as a file of the stack holds.
        records: those of the stack at T > 0, in the order of their steps.
        work: rows whose gradients a chain of the run has taken, in all; a small share of it is spent here.
        batch: rows of a batch of the run.
        random: decides the directions, the rows and the momenta.
    """

    def __init__(
        self, posterior: Posterior, potential: ExactPotential, records: Sequence[Record], work: float, batch: int,
        random: torch.Generator,
    ):  # fmt: skip
        self.posterior, self.potential, self.records, self.random = posterior, potential, records, random
        self.work, self.batch = work, min(batch, max(1, potential.num_data // FEWEST_BATCHES))
        sizes = zip(potential.names, potential.sizes, strict=True)
        self._blocks = [name for name, size in sizes if FEWEST_COORDINATES <= size < sum(potential.sizes)]
        self._steepest: Tensor | None = None  # (C,) the largest curvature that was seen, nats

    def plan(self) -> tuple[int, int | None]:
        """How many states are read, and by how many rows each: None for all rows. No states where nothing is known."""
        states = int(TEMPERATURE_SHARE * self.work / (GRADIENTS * self.potential.num_data))
        if states >= FEW_STATES or not self.potential.takes_rows:
            return min(states, STATES, len(self.records)), None
        rows = int(TEMPERATURE_SHARE * self.work / (PARTIAL * (GRADIENTS + 1)))
        return (min(PARTIAL, len(self.records)), rows) if rows >= PARTIAL_ROWS else (0, None)

    def read(self, states: int | None = None) -> StackReadings | None:
        """The readings at evenly spaced states; None where fewer than two are affordable, or the loss is random.

        states: as many, by all rows, whatever they cost.

        The noisiest directions come from the first of these states, which is not read: they are then as good as fixed
        for the later ones, as the formulas need it.
        """
        count, rows = self.plan() if states is None else (min(states, len(self.records)), None)
        if count < 3 or self.potential.is_random or self.potential.num_data < 2:  # one row has no batches
            return None
        first, *chosen = (self.records[i] for i in torch.linspace(0, len(self.records) - 1, count).long().tolist())
        v, steep = self._noisiest(self._state(first))
        self._steepest = steep[:, 0]
        found = [self._read_state(record, rows, v, steep) for record in chosen]
        names = ["all", *self._blocks]
        labels = ([f"noise_{i + 1}" for i in range(v.shape[1])], names, [f"spread/{name}" for name in names])
        return StackReadings(
            dict(zip(DIRECTION_KINDS, labels, strict=True)),
            dict(zip(DIRECTION_KINDS, zip(*found, strict=True), strict=True)),
            torch.stack([_temperature(record) for record in chosen]),
        )

    def continued(self) -> Continuation | None:
        """HMC from the last states; None where too few trajectories are affordable, or U is none of its own."""
        affordable = int(CONTINUATION_SHARE * self.work / self.potential.num_data / LEAPFROG)
        if affordable < TRAJECTORIES or self._steepest is None or self.potential.has_batch_statistics:
            return None
        return self.continued_for(min(affordable, LONGEST))

    def continued_for(
        self, trajectories: int, seen: Callable[[int, Tensor, Tensor], None] | None = None
    ) -> Continuation:
        """HMC from the last states, whatever it costs. seen: see `continue_exactly`."""
        theta, t = self._state(self.records[-1]), _temperature(self.records[-1])
        steepest = self._noisiest(theta)[1][:, 0] if self._steepest is None else self._steepest
        return continue_exactly(self.potential, theta, t, steepest, trajectories, self.random, seen)

    def _noisiest(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """(C, k, d) the directions in which gradients of batches vary most, and (C, k) about the curvature along each.

        The gradient of U by a batch varies by about (N/B - 1) ∇²U.
        """
        v, variances = top_directions(self._batch_gradients(theta), TOP)
        b, n = self.batch, self.potential.num_data
        return v, variances * (b / n / (1 - b / n))

    def _read_state(self, record: Record, rows: int | None, v: Tensor, steep: Tensor) -> tuple[DirectionReading, ...]:
        assert self._steepest is not None
        theta, t = self._state(record), _temperature(record)
        gradient, here = self._gradients(theta, rows)
        of_noise = read_directions(gradient, here, theta, t, v, steep, self._signs(steep))
        offset = self.potential.prior.offset(theta)
        of_blocks = read_blocks(gradient, here, theta, offset, t, self._steepest, self._signs(theta), self._split)
        self._steepest = torch.maximum(self._steepest, of_noise.curvature.amax(1))
        return of_noise, *of_blocks

    def _split(self, flat: Tensor) -> list[Tensor]:
        """The parts of the tensors that have a temperature of their own."""
        parts = zip(self.potential.names, self.potential.split(flat), strict=True)
        return [part for name, part in parts if name in self._blocks]

    def _state(self, record: Record) -> Tensor:
        """θ (C, d) of a record, with its buffers and learned precisions in place."""
        if record.precision is not None:
            learned = self.potential.prior.learned()
            rows = torch.tensor(record.precision, dtype=learned[0].dtype, device=learned[0].device)
            self.potential.prior.learn(list(rows.split([values.shape[-1] for values in learned], -1)))
        return self.potential.put(self.posterior.read_record(record))

    def _signs(self, like: Tensor) -> Tensor:
        return (torch.randint(0, 2, like.shape, generator=self.random) * 2 - 1).to(like)

    def _gradients(self, theta: Tensor, rows: int | None) -> tuple[GradientAt, Pair]:
        """∇U over all rows, and twice what it is at θ; or by a part of the data, and at θ by a second one too."""
        first = None if rows is None else self._batch(rows)

        def gradient(at: Tensor) -> Tensor:
            return self.potential(at, first)[1]

        g = gradient(theta)
        return gradient, (g, g if rows is None else self.potential(theta, self._batch(rows))[1])

    def _batch(self, rows: int) -> list[Any]:
        """A batch of random rows. They are drawn with replacement, so that two batches are independent."""
        return self.potential.rows(torch.randint(self.potential.num_data, (rows,), generator=self.random))

    def _batch_gradients(self, theta: Tensor) -> Tensor:
        """(M, C, d) gradients of U by single batches, nats."""
        count = max(2, min(NOISE_BATCHES, GRADIENT_NUMBERS // theta.numel()))
        return torch.stack([self.potential(theta, batch)[1] for batch in self._batches(count)])

    def _batches(self, count: int) -> Iterator[list[Any]]:
        if self.potential.takes_rows:
            yield from (self._batch(self.batch) for _ in range(count))
            return
        parts = (  # what is left of a batch is left out
            part_of(batch, slice(first, first + self.batch))
            for batch in self.potential.batches
            for first in range(0, count_items(batch) - self.batch + 1, self.batch)
        )
        yield from ([part] for part in itertools.islice(parts, count))


def _temperature(record: Record) -> Tensor:
    """(C,) T, double."""
    return torch.as_tensor(record.temperature, dtype=torch.float64).expand(len(record.chains)).clone()
