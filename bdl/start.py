"""AdamWStart: trains the chains of a stack as a deep ensemble, from which sampling then begins."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, islice, repeat

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from bdl.data.loader import TensorBatches, TensorSlices, WorkerBatches
from bdl.data.split import hold_out
from bdl.devices import widest
from bdl.display import Progress
from bdl.engine.choose import Compile, choose_gradient
from bdl.engine.functional import named_tensors
from bdl.engine.losses import mean_losses
from bdl.engine.stack import ChainStack
from bdl.errors import ConfigError, DivergedError, check_fraction, check_positive
from bdl.likelihoods import Likelihood, Loss
from bdl.seeding import derive_seed

# A pass through a million items in batches of 64 would take minutes, and 20 passes without a lower loss end a training
EPOCH_STEPS = 1000
STOPPING_ITEMS = 20_000  # which know a mean loss to 1 % of the losses' spread


@dataclass(frozen=True)
class Trained:
    """What `AdamWStart.train` did."""

    epochs: int  # passes through the items, of at most EPOCH_STEPS steps
    best_epoch: Tensor  # (C,) int64, the epoch whose state each member kept; 1 is the first
    val_loss: Tensor  # (C,) mean validation loss of that state, nats


@dataclass(frozen=True)
class AdamWStart:
    """Trains the C networks of a `ChainStack` in place, as a deep ensemble (Lakshminarayanan et al. 2017), by AdamW.

    AdamW (Loshchilov & Hutter 2019, algorithm 2) is elementwise, so that one optimizer on stacked tensors trains every
    member by itself. A member stops once `patience` epochs have not lowered its validation loss, and keeps the
    parameters and buffers of its best epoch. An epoch is a pass through the items, or 1,000 steps of a longer pass,
    which the next epoch continues. Sampling from there begins at networks that already predict well (as in MILE, Sommer
    et al. 2025), which differ because their starting points and batches do.

        >>> from bdl import HeteroscedasticNLL
        >>> x = torch.linspace(-1, 1, 200).unsqueeze(1)
        >>> batches = TensorBatches(x, x.square(), batch_size=50, chains=4)
        >>> stack = ChainStack(torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)), 4)
        >>> trained = AdamWStart(lr=0.01, epochs=20).train(stack, batches, HeteroscedasticNLL())
        >>> trained.epochs, trained.val_loss.shape
        (20, torch.Size([4]))

    Args:
        lr: step size.
        weight_decay: decoupled; each step shrinks all parameters by the factor 1 - lr weight_decay.
        batch_size: items per member and step; at most the training items.
        epochs: the largest number of epochs.
        patience: epochs without a lower validation loss after which a member stops.
        val_fraction: share of the training items that is held out for early stopping where the data have no validation
            part. Only the start leaves these items out: the sampler sees them.

    Raises ConfigError for a value out of range.
    """

    lr: float = 1e-3
    weight_decay: float = 1e-4
    batch_size: int = 64
    epochs: int = 1000
    patience: int = 20
    val_fraction: float = 0.1

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "patience"):
            if getattr(self, name) < 1:
                raise ConfigError(f"start.{name} must be at least 1, got {getattr(self, name)}")
        check_positive("start.lr", self.lr)
        if not 0 <= self.weight_decay < 1 / self.lr:
            raise ConfigError(f"start.weight_decay must be from 0 to 1 / start.lr, got {self.weight_decay}")
        check_fraction("start.val_fraction", self.val_fraction)

    def train(
        self,
        stack: ChainStack,
        batches: TensorBatches | WorkerBatches,
        loss: Loss,
        val: TensorSlices | None = None,
        *,
        compiled: Compile = "auto",
        progress: Progress | None = None,
        groups: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Trained:
        """Train the stack on the items of a training loader, whose position stays.

        The result depends on the settings, the stack, the items, and the loader's seed and stack number. torch's global
        random streams stay as they are.

        Args:
            stack: the networks, on the device to train on.
            batches: a loader of bdl.data; its items, augmentation and transform count, its batch size does not.
            loss: a negative log-likelihood per item, or any loss that returns its mean over the batch.
            val: validation items; None holds out a part of the training items.
            compiled: see `compile` of `BayesianModule`.
            progress: called after every epoch.
            groups: (N,) of the training items; a part of them that is held out has whole groups.
            rows: (n,) indices of the training items to learn from, and to stop the training by; None for all.

        Raises DivergedError for a member whose validation loss was never finite, ConfigError for items that are too few
        to hold some out or do not fit the loss.
        """
        if not isinstance(batches, TensorBatches | WorkerBatches) or not isinstance(val, TensorSlices | None):
            raise ConfigError(
                f"start needs the loaders of bdl.data, got {type(batches).__name__}: use a bdl.data.TensorDataModule"
            )
        plan = batches.batches if isinstance(batches, WorkerBatches) else batches
        device = next(stack.parameters()).device
        train, held_out = self._split(plan, val, None if stack.shared else stack.chains, groups, rows)
        if isinstance(loss, Likelihood):
            loss.check_items(train.y)
        best, epoch = _Best(stack, self.patience), 0
        loader, held_out = train.to(device), held_out.to(device)
        loader = WorkerBatches(loader, batches.workers) if isinstance(batches, WorkerBatches) else loader
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(derive_seed("start", "torch", plan.seed, plan.stack))  # dropout draws from it
            step = _stepper(stack, loss, compiled, self)
            stream, steps = chain.from_iterable(repeat(loader)), min(len(loader), EPOCH_STEPS)
            for epoch in range(1, self.epochs + 1):
                for x, y in islice(stream, steps):
                    step(x, y)
                best.update(epoch, mean_losses(held_out, stack, loss, stack.chains))
                if progress is not None:
                    progress(epoch, self.epochs)
                if bool(best.stopped.all()):
                    break
        stack.zero_grad()  # lets the memory of the gradients go
        best.restore()
        return Trained(epoch, best.epoch.cpu(), best.loss.cpu())

    def _split(
        self,
        plan: TensorBatches,
        val: TensorSlices | None,
        chains: int | None,
        groups: Tensor | None,
        rows: Tensor | None,
    ) -> tuple[TensorBatches, TensorSlices]:
        """The loader of the training items, and the items whose loss stops the training."""
        x, y, seed = plan.x, plan.y, derive_seed("start", plan.seed)
        if rows is not None:
            x, y, groups = x[rows], y[rows], None if groups is None else groups[rows.cpu()]
        if val is None:
            kept, out = hold_out(len(y), self.val_fraction, seed, groups=groups)
            if not len(out):
                raise ConfigError(
                    f"start.val_fraction = {self.val_fraction} of {len(y)} training items holds out none: raise it, or "
                    "begin without this start (~start, or start=None in Python)"
                )
            kept, out = kept.to(y.device), out.to(y.device)
            val, (x, y) = TensorSlices(x[out], y[out], transform=plan.transform), (x[kept], y[kept])
        else:
            val = TensorSlices(val.x, val.y, transform=val.transform)  # a copy, which may move to a device
        if len(val.y) > STOPPING_ITEMS:
            even = torch.arange(0, len(val.y), math.ceil(len(val.y) / STOPPING_ITEMS), device=val.y.device)
            val = TensorSlices(val.x[even], val.y[even], transform=val.transform)
        train = TensorBatches(
            x, y, min(self.batch_size, len(y)), chains=chains, seed=seed, stack=plan.stack,
            augment=plan.augment, transform=plan.transform,
        )  # fmt: skip
        return train, val


class _Best:
    """The state of each member at the epoch with its lowest validation loss."""

    def __init__(self, stack: ChainStack, patience: int):
        each = named_tensors(stack.net)
        self.tensors = [tensor for name, tensor in each.items() if name not in stack.frozen_names]
        self.kept = [t.detach().clone() for t in self.tensors]
        self.patience = patience
        device = self.tensors[0].device
        self.loss = torch.full((stack.chains,), math.inf, dtype=widest(device), device=device)
        self.epoch = torch.zeros(stack.chains, dtype=torch.int64, device=device)
        self.stopped = torch.zeros(stack.chains, dtype=torch.bool, device=device)

    @torch.no_grad()
    def update(self, epoch: int, losses: Tensor) -> None:
        """Keep the members that have improved and have not stopped. losses: (C,) at the end of this epoch."""
        better = (losses < self.loss) & ~self.stopped  # False for NaN
        self.loss, self.epoch = torch.where(better, losses, self.loss), self.epoch.masked_fill(better, epoch)
        for kept, now in zip(self.kept, self.tensors, strict=True):
            kept[better] = now[better]
        self.stopped |= epoch - self.epoch >= self.patience

    @torch.no_grad()
    def restore(self) -> None:
        """Give every member its best state. Raises DivergedError for members without one."""
        wrong = (self.epoch == 0).nonzero().flatten().tolist()
        if wrong:
            raise DivergedError(
                f"start: the validation loss of member {wrong[0]} was never finite ({len(wrong)} of {len(self.epoch)} "
                "members): lower start.lr"
            )
        for kept, now in zip(self.kept, self.tensors, strict=True):
            now.copy_(kept)


def _stepper(
    stack: ChainStack, loss: Loss, compiled: Compile, settings: AdamWStart
) -> Callable[[Tensor, Tensor], None]:
    """A function that takes one step of AdamW on a batch."""
    gradient = choose_gradient(stack.train(), loss, compiled)
    params = gradient.params
    means, squares, gradients = ([torch.zeros_like(p) for p in params] for _ in range(3))
    steps = [torch.zeros((), device=p.device) for p in params]

    def step(x: Tensor, y: Tensor) -> None:
        gradient.write(x, y, gradients)
        with torch.no_grad():  # the function behind torch.optim.AdamW, whose own bookkeeping takes as long as the rest
            adamw(
                params, gradients, means, squares, [], steps, fused=params[0].device.type in ("cpu", "cuda"),
                amsgrad=False, beta1=0.9, beta2=0.999, lr=settings.lr, weight_decay=settings.weight_decay, eps=1e-8,
                maximize=False,
            )  # fmt: skip

    return step
