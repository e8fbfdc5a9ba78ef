"""Texts, of which the next token is predicted: tokens are characters, or the tokens of a `tokenizers` file."""

from __future__ import annotations

import hashlib
import io
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from bdl.advice import override
from bdl.data.frame import locate
from bdl.data.loader import Batching
from bdl.data.tensors import TensorDataModule
from bdl.disk.files import open_regular
from bdl.errors import ConfigError

FORMAT_VERSION = 1
CHARACTERS = "characters"


class Tokens(ABC):
    """What a text consists of: pieces, each with a number from 0 to `size` - 1."""

    @property
    @abstractmethod
    def size(self) -> int:
        """K, the number of different tokens."""

    @abstractmethod
    def encode(self, text: str, place: str) -> Tensor:
        """(n,) int64 tokens of a text. Raises ConfigError, which names the place, for a piece without a number."""

    @abstractmethod
    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """The text of each token; joined, they are the text."""

    @abstractmethod
    def plain(self) -> dict[str, Any]:
        """Plain values from which `tokens_of` makes the same tokens again."""


@dataclass(frozen=True)
class Characters(Tokens):
    """Each character is a token; its number is its place in `characters`.

    >>> tokens = Characters("abn")
    >>> tokens.encode("banana", "a word").tolist(), tokens.pieces([0, 2])
    ([1, 0, 2, 0, 2, 0], ['a', 'n'])
    """

    characters: str

    @property
    def size(self) -> int:
        return len(self.characters)

    def encode(self, text: str, place: str) -> Tensor:
        if unknown := sorted(set(text) - set(self.characters)):
            raise ConfigError(
                f"{place} has the character {unknown[0]!r}, which is none of the {self.size} that were sampled with"
            )
        number = {character: k for k, character in enumerate(self.characters)}
        return torch.tensor([number[character] for character in text], dtype=torch.int64)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        return [self.characters[k] for k in tokens]

    def plain(self) -> dict[str, Any]:
        return {"tokens": CHARACTERS, "characters": self.characters}


@dataclass(frozen=True)
class TokenizerFile(Tokens):
    """The tokens of a `tokenizers` file, such as the `tokenizer.json` of a model of transformers.

    Args:
        content: the text of the file.

    Raises ConfigError where the package tokenizers is missing, and for a content that it does not read.
    """

    content: str

    @cached_property
    def _tokenizer(self) -> Any:
        if find_spec("tokenizers") is None:
            raise ConfigError("data.tokens names a tokenizers file, which needs a package: pip install 'bdl[lora]'")
        from tokenizers import Tokenizer

        try:
            return Tokenizer.from_str(self.content)
        except Exception as error:  # tokenizers raises Exception itself
            raise ConfigError(f"data.tokens is no tokenizers file: {' '.join(str(error).split())}") from error

    @property
    def size(self) -> int:
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str, place: str) -> Tensor:
        return torch.tensor(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=torch.int64)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        return [self._tokenizer.decode([k], skip_special_tokens=False) for k in tokens]

    def plain(self) -> dict[str, Any]:
        return {"tokens": "tokenizers", "content": self.content}


def tokens_of(plain: Mapping[str, Any]) -> Tokens:
    """The tokens that `Tokens.plain` has written down."""
    return Characters(plain["characters"]) if plain["tokens"] == CHARACTERS else TokenizerFile(plain["content"])


class TextDataModule(TensorDataModule):
    """A text, cut into windows of `context` tokens x (n, context), each with the tokens that follow, y (n, context).

    y is x one token further: y[i, t] is the token after x[i, t]. Each token of the text is predicted once, from the
    tokens before it in its window. The windows do not overlap, and the parts for training, validation and testing
    follow one another in the text, so that no test token stands in the training text.

    `num_data` counts tokens, not windows: each is an observation, and T = 1 is the posterior given all of them.

    Args:
        path: a file of UTF-8 text, or a folder, whose files `*.txt` are joined in the order of their names;
            `package:coriolanus.txt` is a text that bdl brings along.
        tokens: "characters", which are the characters of the file, or the path of a `tokenizers` file.
        context: tokens of a window, the largest number from which a token is predicted.
        test_fraction: share at the end of the text that is for testing.
        val_fraction: share of the rest, at its end, that is held out.
        batch_size: windows per chain and step; "auto" takes 32, or all of fewer.
        batching: chains, seed, stack and replacement, as in `TensorBatches`.

    Raises ConfigError for a text that cannot be read, is too short for its parts, or has tokens that are no part of the
    vocabulary.
    """

    def __init__(
        self,
        path: str | Path,
        tokens: str | Path = CHARACTERS,
        context: int = 64,
        test_fraction: float = 0.1,
        val_fraction: float = 0.0,
        batch_size: int | Literal["auto"] | None = "auto",
        **batching: Unpack[Batching],
    ):
        if context < 1:
            raise ConfigError(f"data.context must be at least 1 token, got {context}")
        text = read_text(path)
        self.tokens = Characters("".join(sorted(set(text)))) if tokens == CHARACTERS else _tokenizer_at(tokens)
        self.context, self.text_sha256 = context, hashlib.sha256(text.encode()).hexdigest()
        parts = _parts(self.tokens.encode(text, str(path)), test_fraction, val_fraction)
        splits = {split: windows(part, context) for split, part in parts.items()}
        for split in ("train", "test", *(["val"] if val_fraction else [])):
            if not len(splits[split][1]):
                raise ConfigError(
                    f"{override('data.path', str(path))}: the {split} part has {len(parts[split]):,} tokens, and a "
                    f"window of data.context={context} needs {context + 1}: lower data.context, or take a longer text"
                )
        count = len(splits["train"][1])
        size = min(32, count) if batch_size == "auto" else batch_size
        names = tuple(map(str, range(self.tokens.size)))
        super().__init__(splits, batch_size=size, labels=names, **batching)
        self.name = locate(path).stem
        self.overview = f"{self.name}: {self.rows} windows of {context} tokens, {self.tokens.size:,} different tokens"

    def identity(self) -> dict[str, Any]:
        """The size of the windows and of the vocabulary, and the checksum of the text."""
        return {"context": self.context, "vocabulary": self.tokens.size, "text": self.text_sha256[:16]}

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        return self.tokens.pieces(tokens)

    def preprocessing(self) -> dict[str, Any]:
        return {"format_version": FORMAT_VERSION, "kind": "text", "context": self.context, **self.tokens.plain()}


def windows(tokens: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """x and y (n, context) of tokens (m,): y is x one token further; what fills no window at the end is left out.

    >>> windows(torch.arange(8), context=3)
    (tensor([[0, 1, 2],
            [3, 4, 5]]), tensor([[1, 2, 3],
            [4, 5, 6]]))
    """
    count = max(0, len(tokens) - 1) // context
    x, y = (tokens[shift : shift + count * context].view(count, context) for shift in (0, 1))
    return x.clone(), y.clone()


def read_text(path: str | Path) -> str:
    """The text of a file, or of all files `*.txt` of a folder. Raises ConfigError without a file."""
    place, name = locate(path), override("data.path", str(path))
    files = sorted(place.rglob("*.txt")) if place.is_dir() else [place]
    if not files:
        raise ConfigError(f"{name} is a folder without files *.txt: name the file, or rename it")
    try:
        text = "".join(map(_text_of, files))
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is no UTF-8 text ({error.reason}): save it as UTF-8") from error
    if not text:
        raise ConfigError(f"{name} is empty")
    return text


def _text_of(file: Path) -> str:
    with open_regular(file) as f:
        return io.TextIOWrapper(f, encoding="utf-8").read()  # it makes one line feed of every end of a line


def _parts(tokens: Tensor, test_fraction: float, val_fraction: float) -> dict[str, Tensor]:
    """The tokens of the parts, which follow one another: train, val, test."""
    for name, fraction in (("test_fraction", test_fraction), ("val_fraction", val_fraction)):
        if not 0 <= fraction < 1:
            raise ConfigError(f"data.{name} must be in [0, 1), got {fraction}")
    rest = len(tokens) - round(test_fraction * len(tokens))
    train = rest - round(val_fraction * rest)
    return {"train": tokens[:train], "val": tokens[train:rest], "test": tokens[rest:]}


def _tokenizer_at(path: str | Path) -> TokenizerFile:
    try:
        return TokenizerFile(_text_of(Path(path).expanduser()))
    except (OSError, UnicodeDecodeError) as error:
        name = override("data.tokens", str(path))
        raise ConfigError(f"{name} is neither {CHARACTERS!r} nor a tokenizers file: {error}") from error
