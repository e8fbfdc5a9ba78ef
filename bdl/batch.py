"""Batches of any shape: which parts of a batch are inputs of the network, and which is the target.

>>> import torch
>>> read = Reader()
>>> read((torch.zeros(2, 3), torch.tensor([0, 1])))
(tensor([[0., 0., 0.],
        [0., 0., 0.]]), tensor([0, 1]))
>>> inputs, y = read({"tokens": torch.zeros(2, 4), "labels": torch.tensor([0, 1])})
>>> list(inputs), y
(['tokens'], tensor([0, 1]))
"""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn

from bdl.errors import BdlWarning, ConfigError
from bdl.likelihoods.categorical import IGNORED

TARGETS = ("labels", "label", "target", "y")  # names of the target in a dict or a dataclass, the first one counts

Inputs = Any  # a tensor for one input, a tuple of inputs in order, or a dict of inputs by name


class Reader:
    """Splits a batch into the inputs of the network and the target.

    The last part of a tuple is the target, and the others are inputs in order. In a dict or a dataclass, `labels`,
    `label`, `target` or `y` is the target, and the others go to `forward` by name. A tensor is an input alone.

    Labels that are the tokens of the inputs, as transformers' causal models take them, are shifted by one, so that each
    position predicts the next token and the last one nothing; a network that copies its inputs would be right
    otherwise. The first batch with labels of tokens decides it, and a BdlWarning says so. A method `targets(batch)`
    turns it off.

    Args:
        modules: the first one whose class has a method `inputs(batch)`, or `targets(batch)`, reads the batch instead.
            `inputs` returns a tensor, a tuple of inputs in order, or a dict of inputs by name; `targets` the target.

    Raises ConfigError, with the structure of the batch, for a batch in which there is no input.
    """

    def __init__(self, *modules: nn.Module):
        self._inputs, self._target = _method(modules, "inputs"), _method(modules, "targets")
        self._shifts: bool | None = None if self._target is None else False  # None until there are labels of tokens

    def __call__(self, batch: Any) -> tuple[Inputs, Any]:
        """(inputs, target) of a batch; None stands for a target that is not there."""
        inputs, target = _split(batch)
        if self._inputs is not None:
            inputs = self._inputs(batch)
        if not isinstance(inputs, Tensor) and next(tensors_in(inputs), None) is None:
            raise ConfigError(
                f"the batch has no input that bdl can read: {structure(batch)}; give the module a method "
                "inputs(batch) that returns a tensor, a tuple or a dict of them"
            )
        if self._target is not None:
            return inputs, self._target(batch)
        if self._shifts is None and isinstance(target, Tensor) and target.ndim > 1:
            self._decide(inputs, target)
        return inputs, next_tokens(target) if self._shifts else target

    def _decide(self, inputs: Inputs, target: Tensor) -> None:
        if target.is_complex() or len(target[target != IGNORED].unique()) < 2:
            return  # a constant, or nothing that counts, tells nothing
        self._shifts = not target.is_floating_point() and copies_inputs(inputs, target)
        if self._shifts:
            line = (
                "the labels of the batches are their tokens: bdl shifts them by one, so that each position predicts "
                "the next token; give the module a method targets(batch) to say otherwise"
            )
            warnings.warn(line, BdlWarning, stacklevel=4)


def copies_inputs(inputs: Inputs, y: Tensor) -> bool:
    """Whether the classes y (..., T) are the tokens of one of the inputs, wherever they count. Masks are no tokens.

    >>> import torch
    >>> tokens = torch.tensor([[3, 1, 2, 0]])
    >>> copies_inputs({"input_ids": tokens}, tokens), copies_inputs(tokens, next_tokens(tokens))
    (True, False)
    """
    counted = y != IGNORED
    named = _named(inputs)
    several = [v for k, v in named.items() if "mask" not in k] if named is not None else tensors_in(inputs)
    alike = [x for x in several if isinstance(x, Tensor) and x.shape == y.shape and not x.is_floating_point()]
    return any(bool((x == y)[counted].all()) for x in alike)


def next_tokens(tokens: Tensor) -> Tensor:
    """The labels (..., T) of tokens (..., T): each is the token after it, and the last one does not count.

    >>> import torch
    >>> next_tokens(torch.tensor([3, 1, 2]))
    tensor([   1,    2, -100])
    """
    return torch.cat([tokens[..., 1:], torch.full_like(tokens[..., :1], IGNORED)], -1)


def feed(net: Callable[..., Any], inputs: Inputs, call: Callable[..., Any] | None = None) -> Any:
    """The outputs of a network, or of any function, for these inputs. call: calls the network in another way."""
    args, kwargs = arguments(inputs)
    try:
        return (net if call is None else call)(*args, **kwargs)  # `call or net` is not compiled by torch 2.11
    except TypeError:
        try:
            inspect.signature(net.forward if isinstance(net, nn.Module) else net).bind(*args, **kwargs)
        except TypeError as error:
            raise ConfigError(
                f"{type(net).__name__}.forward does not take the inputs {structure(inputs)} ({error}): change forward, "
                "or give the module a method inputs(batch) that returns what it takes"
            ) from error
        raise


# What torch, or a network itself, raises for inputs of another shape, dtype or range
INPUT_ERRORS = (RuntimeError, ValueError, NotImplementedError, IndexError)


def refuse_unfit(net: nn.Module, inputs: Inputs, error: Exception, alone: Callable[[], Any]) -> None:
    """Raise ConfigError, in torch's words, where the network by itself does not take the inputs.

    alone: feeds them to the network again, without what else may have led to the error, such as the loss or vmap. A
    lack of memory is another matter.
    """
    if isinstance(error, torch.OutOfMemoryError | ConfigError):
        return
    try:
        with torch.no_grad():
            alone()
    except torch.OutOfMemoryError:
        return
    except ConfigError as unfit:  # a stack of chains says so itself
        raise unfit from error
    except INPUT_ERRORS as unfit:
        line = str(unfit).strip().partition("\n")[0]
        raise ConfigError(
            f"{type(net).__name__} does not take the inputs {structure(inputs)}: {line}; give items of the shape and "
            "the dtype that the network was trained on"
        ) from error


def refuse_outputs(net: nn.Module, outputs: Any) -> Any:
    """The outputs. Raises ConfigError for any that are no tensor."""
    if isinstance(outputs, Tensor):
        return outputs
    raise ConfigError(
        f"{type(net).__name__}.forward returns {structure(outputs)}, and bdl works with one tensor: wrap the network "
        "in a module that returns the logits, or the parameters of the distribution"
    )


class Fed(nn.Module):
    """A network that takes all inputs as one argument, because torch's `update_bn` hands on one."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, inputs: Inputs) -> Tensor:
        return feed(self.net, inputs)


def arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs as arguments in order, and by name."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}


def inputs_of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
    """The inputs that a call forward(*args, **kwargs) was given."""
    if args and kwargs:
        raise ConfigError(f"give all inputs by name, or all in order; these came by name: {', '.join(kwargs)}")
    return kwargs or (args[0] if len(args) == 1 else args)


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same batch or inputs, with the function applied to every tensor."""
    return function(value) if isinstance(value, Tensor) else apply_to_collection(value, Tensor, function)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors of a batch or of inputs, in order."""
    if isinstance(value, Tensor):
        yield value
    elif (named := _named(value)) is not None:
        for part in named.values():
            yield from tensors_in(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)


def count_items(value: Any, axis: int = 0) -> int:
    """The number of items: the length of the first tensor that has that axis; 0 without one."""
    return next((t.shape[axis] for t in tensors_in(value) if t.ndim > axis), 0)


def count_targets(batch: Any, axis: int = 0) -> int:
    """The number of items of a batch, by its target where it has one, by its first tensor else; 0 without one."""
    inputs, target = _split(batch)
    return count_items(target, axis) or count_items(inputs, axis)


def part_of(value: Any, items: slice, axis: int = 0) -> Any:
    """The same batch or inputs with some of the items. Tensors of another length than that of the first stay whole."""
    total, where = count_items(value, axis), (slice(None),) * axis + (items,)
    return map_tensors(lambda t: t[where] if t.ndim > axis and t.shape[axis] == total else t, value)


def rows_of(value: Any, rows: Tensor | slice) -> Any:
    """The same batch or inputs with these items, of which every tensor has a row."""
    return map_tensors(lambda t: t[rows], value)


def joined(parts: Sequence[Any]) -> Any:
    """The items of several batches, or inputs, as those of one. Raises ConfigError for different shapes."""
    try:
        whole = iter([torch.cat(each) for each in zip(*map(tensors_in, parts), strict=True)])
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"the batches do not fit together ({error}): give items of one shape") from error
    return map_tensors(lambda _: next(whole), parts[0])


def structure(batch: Any) -> str:
    """What a batch consists of, in one line, for messages.

    >>> import torch
    >>> structure({"tokens": torch.zeros(2, 4), "names": ["a", "b"]})
    'dict(tokens: float32 (2, 4), names: list(str, str))'
    """
    if isinstance(batch, Tensor):
        return f"{str(batch.dtype).removeprefix('torch.')} {tuple(batch.shape)}"
    named = _named(batch)
    if named is not None:
        return f"{type(batch).__name__}({', '.join(f'{k}: {structure(v)}' for k, v in named.items())})"
    if isinstance(batch, tuple | list):
        shown = [structure(part) for part in batch[:4]] + (["..."] if len(batch) > 4 else [])
        return f"{type(batch).__name__}({', '.join(shown)})"
    return type(batch).__name__


def _named(batch: Any) -> Mapping[str, Any] | None:
    """The parts of a dict or a dataclass by name."""
    if isinstance(batch, Mapping):
        return batch
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return None


def _split(batch: Any) -> tuple[Inputs, Any]:
    """(inputs, target) of a batch by the rules of `Reader`."""
    if type(batch) is tuple and len(batch) == 2:  # first, because a small step takes 50 µs
        return batch
    if isinstance(batch, Tensor):
        return batch, None
    if (named := _named(batch)) is not None:
        target = next((name for name in TARGETS if name in named), "")
        return {name: value for name, value in named.items() if name != target}, named.get(target)
    if not isinstance(batch, tuple | list):
        return (), None
    *inputs, target = batch if len(batch) > 1 else (*batch, None)
    return inputs[0] if len(inputs) == 1 else tuple(inputs), target


def _method(modules: Sequence[nn.Module], name: str) -> Callable[[Any], Any] | None:
    """A method that the class of one of the modules defines. A submodule or a tensor of that name is something else."""
    return next((getattr(m, name) for m in modules if inspect.isfunction(getattr(type(m), name, None))), None)
