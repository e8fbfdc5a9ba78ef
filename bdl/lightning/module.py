"""BayesianModule: a LightningModule for people who bring a network and no module."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from bdl.batch import INPUT_ERRORS, Inputs, feed, map_tensors, refuse_outputs, refuse_unfit, structure
from bdl.data.loader import TensorBatches, WorkerBatches
from bdl.engine.choose import Compile, choose_gradient
from bdl.engine.functional import evaluating
from bdl.engine.gradient import Autograd, Gradient, backward, per_chain_gradients, per_example_gradients
from bdl.engine.losses import mean_losses
from bdl.engine.stack import ChainStack
from bdl.errors import BdlWarning, ConfigError
from bdl.frozen import hold_in_eval, refuse_parallel
from bdl.lightning.blocks import StepBlocks
from bdl.lightning.first_batch import check_first_batch, gradient_note
from bdl.lightning.full_gradient import FullGradient
from bdl.lightning.host import (
    dataset_of,
    host_under,
    in_order,
    most_items,
    plain_net,
    reader_of,
    refuse_shared_freeze,
    share_batches,
)
from bdl.lightning.micro_batches import MicroBatches
from bdl.lightning.noise import NoiseDraws
from bdl.lightning.refuse import check_data, check_network, check_strategy, check_targets, check_trainer
from bdl.likelihoods import (
    CategoricalNLL,
    Loss,
    check_loss,
    law_note,
    likelihood_of,
    mean_loss,
    refuse_targets_of,
)
from bdl.samplers.potential import BoundGradient
from bdl.samplers.sampler import Sampler


class BayesianModule(L.LightningModule):
    """Samples the posterior of a network, or of a ChainStack of C copies of it.

    Batches are (x, y) with x (B, ...), or x (C, B, ...) for a stack whose chains see different batches. They may have
    several inputs, and be dicts or dataclasses: `bdl.batch.Reader` says which part is the target. A subclass, or the
    network, may read them otherwise by methods `inputs(batch)` and `targets(batch)`.

        >>> import functools, torch, bdl
        >>> build = functools.partial(bdl.Sampler, dynamics=bdl.SGHMC(friction=0.1), num_data=1000, lr=0.1)
        >>> module = BayesianModule(bdl.ChainStack(torch.nn.Linear(3, 2), chains=4), build)
        >>> module.chains, module.loss
        (4, CategoricalNLL())
        >>> module(torch.zeros(5, 3)).shape
        torch.Size([4, 5, 2])

    Args:
        net: the network, or `ChainStack(net, C)`.
        sampler: builds the Sampler from named parameters, e.g. `functools.partial(bdl.Sampler, dynamics=bdl.SGHMC(),
            num_data=N, lr=0.1)`. The module passes `chains` itself.
        loss: a negative log-likelihood per item (`bdl.likelihoods`), or any loss that returns its mean over the batch.
        compile: "auto" lets code in C find the gradient of stacks of small MLPs, True refuses a machine without a C
            compiler, False uses torch alone; they agree to rounding. On a GPU the kernels become CUDA graphs, unless it
            is False, and True lets `torch.compile` fuse them.

    Warns with BdlWarning about a loss that is not the negative log-likelihood of the data. Raises ConfigError for
    Trainer settings under which the sampler cannot work, data other than its N items, and another network's checkpoint.
    """

    def __init__(
        self,
        net: nn.Module,
        sampler: Callable[..., Sampler],
        loss: Loss | None = None,
        compile: Compile = "auto",
    ):
        super().__init__()
        self.net = net
        refuse_parallel(net)
        check_loss(loss)
        self.loss = CategoricalNLL() if loss is None else loss
        self.build_sampler = sampler
        self.compiled: Compile = compile
        self._read = reader_of(self)
        self._micro_batches: MicroBatches | None = None  # of the step, once training starts
        self._unchecked = False  # whether the loss is still to be checked on a batch
        self._current = SimpleNamespace(batch=None)  # the batch of the step; torch is slow to set attributes of modules
        self._blocks: StepBlocks | None = None
        self._most: int | None = None  # items on which all chains may run at once; measured when it is first needed
        self._autograd = Autograd(self._losses, [])
        self._gradient: Gradient = self._autograd  # the fastest form of the gradient, once training starts

    @property
    def chains(self) -> int | None:
        """C for a stack, None for a single network."""
        return self.net.chains if isinstance(self.net, ChainStack) else None

    def configure_optimizers(self) -> Sampler:
        check_strategy(self.trainer)  # first: parameters in parts would fail in other ways
        sampler = self.build_sampler(plain_net(self.net).named_parameters(), chains=self.chains)
        refuse_shared_freeze(self.net, sampler)
        check_trainer(self.trainer, sampler)
        self.sampler = sampler
        self._note(law_note(self.loss))
        self._hold_frozen_part()
        return sampler

    def _note(self, note: str | None) -> None:
        if note is not None:  # a loss that is not the negative log-likelihood of the data
            warnings.warn(note, BdlWarning, stacklevel=2)
            self.sampler.notes.append(f"loss: {note}")

    def train(self, mode: bool = True) -> Self:
        """As torch's, but a frozen part stays in eval mode unless the sampler says otherwise."""
        super().train(mode)
        self._hold_frozen_part()
        return self

    def _hold_frozen_part(self) -> None:
        sampler = getattr(self, "sampler", None)
        if sampler is not None and sampler.frozen == "eval" and self.chains is None:
            hold_in_eval(self.net, {id(p) for p in sampler.sampled})

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Outputs (B, K) of the network for x (B, ...); (C, B, K) of every chain of a stack."""
        return (self.net.broadcast if isinstance(self.net, ChainStack) else self.net)(*args, **kwargs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self._unchecked:
            self._unchecked = False
            with torch.no_grad(), evaluating(self):
                self._note(check_first_batch(self.net, self.loss, batch, self._read, self._loss_of))
                self._note(gradient_note(lambda: self._losses(*self._read(batch)), self.sampler.sampled, self.chains))
        loss = self._loss_of(batch)
        return loss if self._micro_batches is None else self._micro_batches.add(loss, batch, batch_idx)

    def _loss_of(self, batch: Any) -> Tensor:
        """() or (C,) mean loss of a training batch."""
        inputs, y = self._current.batch = self._read(batch)
        try:
            return self.gradient_for(inputs).losses(inputs, y)
        except INPUT_ERRORS as error:
            refuse_unfit(self.net, inputs, error, lambda: feed(self.net, inputs))
            self._refuse_targets(inputs, y, error)
            raise

    def _refuse_targets(self, inputs: Inputs, y: Tensor, error: Exception) -> None:
        """Raise ConfigError where targets are of another kind, or outside the domain of the likelihood."""
        refuse_targets_of(self.loss, y, error)
        if isinstance(error, IndexError) and (likelihood := likelihood_of(self.loss)) is not None:
            with torch.no_grad(), evaluating(self):
                likelihood.check(y.flatten(), feed(self.net, inputs).shape[-1])

    def _losses(self, inputs: Inputs, y: Tensor) -> Tensor:
        return self.batch_loss(feed(self.net, inputs), y)

    def gradient_for(self, inputs: Inputs) -> Gradient:
        """The form of the gradient: those other than autograd's take one tensor."""
        return self._gradient if isinstance(inputs, Tensor) else self._autograd

    def batch_loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """() or (C,) mean loss of a training batch, from the outputs (B, K) or (C, B, K)."""
        refuse_outputs(self.net, outputs)
        if not isinstance(y, Tensor):
            raise ConfigError(
                f"the batch has no target, but {structure(y)}: it is the last part of a tuple, or labels, label, "
                "target or y of a dict; give the module a method targets(batch) that returns the tensor"
            )
        labels = self.net.per_chain(y) if isinstance(self.net, ChainStack) else y
        return mean_loss(self.loss, outputs, labels, self.chains)

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        backward(loss)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        """Step with the mean loss of all micro-batches. Lightning's closure would return the last one's loss."""

        def closure() -> Tensor:
            optimizer_closure()
            return self._micro_batches.mean()  # type: ignore[union-attr]

        shares = self._blocks is not None and self.sampler.host.group is not None
        optimizer.step(closure=closure, measure=not shares or self._blocks.reads_energy(batch_idx + 1))  # type: ignore[union-attr]
        if self._blocks is not None:
            self._blocks.run()

    def step_on(self, batch: Any, measure: bool = True) -> None:
        """One step of the sampler on a batch, without Lightning's loop. measure: see `Sampler.advance`."""
        inputs, y = self._current.batch = self.converted(batch)
        gradient = self.gradient_for(inputs)
        self.sampler.advance(BoundGradient.of(gradient, *gradient.hold(inputs, y)), measure)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Raise ConfigError for a checkpoint of another network: one line, where torch would list every tensor."""
        check_network(checkpoint["state_dict"], self.state_dict())
        for name, tensor in self.state_dict(keep_vars=True).items():
            tensor.data = tensor.to(checkpoint["state_dict"][name].dtype)  # Lightning loads before it casts to double

    def on_train_start(self) -> None:
        check_data(self.trainer, self.sampler)
        check_targets(self.trainer, self.loss, None if self.device.type == "cpu" else self._outputs_of)
        loader: Any = self.trainer.train_dataloader
        self._micro_batches = MicroBatches(self.trainer, self, self.sampler)
        self._unchecked = self.sampler.steps == 0
        if isinstance(self.net, ChainStack) and isinstance(loader, DataLoader):
            share_batches(self.net, self.sampler)
        if isinstance(loader, TensorBatches | WorkerBatches):
            loader.to(self.device)
        host = replace(self.sampler.host, per_example=self.per_example, compiled=self.compiled is not False)
        host = replace(host, noise_draws=NoiseDraws(self, self._losses, self._current), buffers=self.net.buffers)
        host = replace(host, items=self._micro_batches.count, fuses=self.compiled is True)
        if dataset_of(loader) is not None:
            host = replace(host, full_loss=self.full_loss, full_gradient=FullGradient(self))
        if self.trainer.accumulate_grad_batches == 1:
            host = replace(host, batch_loss=self.current_loss)
        self.sampler.host = host_under(self.trainer, host, averages_micro_batches=True)
        self._choose_gradient()
        self._blocks = StepBlocks(self.trainer, self, BayesianModule, self.sampler)

    def full_loss(self) -> Tensor:
        """() or (C,) mean negative log-likelihood over all training data at the present parameters, in eval mode.

        Raises ConfigError for a training loader whose items cannot be read in a fixed order.
        """
        loader = self.trainer.train_dataloader
        self._most = self._most or most_items(loader, self.net, self.device, self.converted)
        moved = (map_tensors(lambda t: t.to(self.device), batch) for batch in in_order(loader, self._most))
        return mean_losses(map(self.converted, moved), self, self.loss, self.chains)

    def converted(self, batch: Any) -> tuple[Inputs, Any]:
        """Inputs and target of a batch, in the precision of the run."""
        return self._read(self.trainer.precision_plugin.convert_input(batch))

    @torch.no_grad()
    def _outputs_of(self, x: Tensor) -> Tensor:
        """The outputs (1, ...) or (C, 1, ...) for an item x (1, ...)."""
        with evaluating(self):
            return self(self.trainer.precision_plugin.convert_input(x.to(self.device)))

    @torch.no_grad()
    def current_loss(self) -> Tensor:
        """() or (C,) mean loss of the step's batch at the present parameters, in eval mode and the step's precision."""
        inputs, y = self._current.batch
        with evaluating(self), self.trainer.precision_plugin.train_step_context():
            return self.batch_loss(feed(self.net, inputs), y)

    def per_example(self) -> Tensor:
        """(n, d) or (C, n, d) gradients of the negative log-likelihood of every item of the current batch."""
        if isinstance(self.net, ChainStack):
            return per_chain_gradients(self.net, self.loss, *self._current.batch)
        return per_example_gradients(self.net, self.loss, *self._current.batch)

    def _choose_gradient(self) -> None:
        """Choose the form of the gradient: autograd's where a subclass has a loss of its own."""
        context = self.trainer.precision_plugin.train_step_context
        self._gradient = self._autograd = Autograd(self._losses, self.sampler.sampled, context)
        with context():
            casts = torch.is_autocast_enabled(self.device.type)
        if type(self).batch_loss is BayesianModule.batch_loss:
            graphs = self.sampler.moves.graphs
            self._gradient = choose_gradient(self.net, self.loss, self.compiled, self._autograd, *graphs, casts)
