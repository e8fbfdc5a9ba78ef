"""Which part of a batch is an input, which the target, and what is refused."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from bdl.batch import Reader, count_items, feed, next_tokens, part_of, refuse_unfit
from bdl.errors import BdlWarning, ConfigError

A, B, Y = torch.zeros(4, 3), torch.ones(4, 2), torch.arange(4)
Named = namedtuple("Named", "a b y")


@dataclass
class Data:
    image: torch.Tensor
    label: torch.Tensor


@pytest.mark.parametrize(
    "batch, inputs, target",
    [
        (A, A, None),
        ((A,), A, None),
        ((A, Y), A, Y),
        ([A, Y], A, Y),
        ((A, B, Y), (A, B), Y),
        (Named(A, B, Y), (A, B), Y),
        (((A, B), Y), (A, B), Y),
        (({"a": A}, Y), {"a": A}, Y),
        ({"a": A, "b": B, "labels": Y}, {"a": A, "b": B}, Y),
        ({"a": A, "target": Y}, {"a": A}, Y),
        ({"a": A, "y": B, "label": Y}, {"a": A, "y": B}, Y),
        (Data(A, Y), {"image": A}, Y),
    ],
)
def test_defaults(batch, inputs, target):
    found, y = Reader()(batch)
    assert y is target and type(found) is type(inputs)
    if isinstance(inputs, dict):
        assert found.keys() == inputs.keys() and all(found[k] is v for k, v in inputs.items())
    else:
        assert found is inputs or all(f is i for f, i in zip(found, inputs, strict=True))


def test_module_reads_its_batches_but_not_by_layer_of_that_name():
    class Reads(nn.Module):
        def inputs(self, batch):
            return batch["x"]

    class HasLayer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inputs = nn.Linear(3, 3)

    batch = {"x": A, "id": B, "y": Y}
    assert Reader(Reads())(batch) == (A, Y) or Reader(Reads())(batch)[0] is A
    assert Reader(HasLayer())((A, Y))[0] is A


@pytest.mark.parametrize("batch", [{"labels": Y}, "text", {"names": ["a"], "y": Y}, [], None])
def test_a_batch_without_inputs_is_refused_with_its_structure(batch):
    with pytest.raises(ConfigError, match="no input that bdl can read: ") as refusal:
        Reader()(batch)
    assert "\n" not in str(refusal.value) and type(batch).__name__ in str(refusal.value)


def test_inputs_forward_does_not_take_are_refused_its_errors_not():
    with pytest.raises(ConfigError, match=r"Linear.forward does not take the inputs dict\(image: float32 \(4, 3\)\)"):
        feed(nn.Linear(3, 2), {"image": A})
    with pytest.raises(TypeError):
        feed(lambda x: x + None, A)


def test_parts_keep_what_has_no_items():
    batch = {"x": A, "mask": torch.ones(4, 4), "scale": torch.ones(7), "name": "a"}
    half = part_of(batch, slice(0, 2))
    assert count_items(batch) == 4 and half["x"].shape == (2, 3) and half["mask"].shape == (2, 4)
    assert half["scale"].shape == (7,) and half["name"] == "a"
    assert part_of((A.expand(2, 4, 3), Y.expand(2, 4)), slice(0, 3), axis=1)[1].shape == (2, 3)


TOKENS = torch.tensor([[3, 1, 2, 2], [1, 0, 3, 1]])
PADDED = torch.tensor([[3, 1, 2, -100], [1, 0, 3, 1]])


@pytest.mark.parametrize(
    "batch, shifted",
    [
        ((TOKENS, TOKENS.clone()), [[1, 2, 2, -100], [0, 3, 1, -100]]),
        ({"input_ids": TOKENS, "labels": PADDED}, [[1, 2, -100, -100], [0, 3, 1, -100]]),
        ({"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS), "labels": TOKENS}, None),
    ],
)
def test_labels_that_are_tokens_are_shifted_and_warning_says_so(batch, shifted):
    read = Reader()
    with pytest.warns(BdlWarning, match="shifts them by one"):
        _, y = read(batch)
    assert y.tolist() == (shifted or [[1, 2, 2, -100], [0, 3, 1, -100]])
    assert read(batch)[1].tolist() == y.tolist()  # in silence


@pytest.mark.parametrize(
    "batch",
    [
        (TOKENS, next_tokens(TOKENS)),
        (TOKENS, TOKENS % 2),
        {"input_ids": TOKENS, "labels": torch.full_like(TOKENS, -100)},
        {"input_ids": TOKENS, "attention_mask": TOKENS % 2, "labels": TOKENS % 2},
        (TOKENS.float(), TOKENS.float()),
        (TOKENS[0], TOKENS[0]),
    ],
)
def test_other_labels_stay(batch, recwarn):
    target = batch[1] if isinstance(batch, tuple) else batch["labels"]
    assert Reader()(batch)[1] is target and not recwarn


def test_a_method_of_the_module_has_the_last_word():
    class Copying(nn.Module):
        def targets(self, batch):
            return batch[1]

    assert Reader(Copying())((TOKENS, TOKENS))[1] is TOKENS


def test_a_batch_in_which_nothing_counts_decides_nothing():
    read, empty = Reader(), torch.full_like(TOKENS, -100)
    assert read((TOKENS, empty))[1] is empty
    with pytest.warns(BdlWarning, match="shifts them by one"):
        assert read((TOKENS, TOKENS))[1].tolist() == next_tokens(TOKENS).tolist()


def test_only_an_error_of_network_by_itself_is_one_of_its_inputs():
    """The loss may raise the same words for other tensors, and a lack of memory is no fault of the inputs."""
    net, words = nn.Linear(3, 2), RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x2 and 3x2)")
    fits, unfit = torch.zeros(4, 3), torch.zeros(4, 2)
    assert refuse_unfit(net, fits, words, lambda: net(fits)) is None
    assert refuse_unfit(net, unfit, torch.OutOfMemoryError("out of memory"), lambda: net(unfit)) is None
    with pytest.raises(ConfigError, match=r"Linear does not take the inputs float32 \(4, 2\): mat1 and mat2"):
        refuse_unfit(net, unfit, words, lambda: net(unfit))


def test_a_function_that_calls_a_network_has_no_truth():
    """torch 2.11, asked for one, leaves the whole step uncompiled."""

    class Calls:
        def __call__(self, x):
            return x + 1

        def __bool__(self):
            raise AssertionError("data-dependent branching")

    assert torch.equal(feed(nn.Identity(), A, Calls()), B[:, :1].expand(4, 3))
