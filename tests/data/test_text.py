"""Texts as data: windows, parts, vocabularies, and N in tokens. Tests of `bdl.contrib.language.text`."""

import functools
import os
import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import toys

import bdl
from bdl.contrib.language.text import Characters, TextDataModule, TokenizerFile, tokens_of, windows
from bdl.errors import ConfigError

WORDS = "the king of denmark speaks to his mother about the war and the sea".split()


@pytest.fixture
def text(tmp_path):
    """(path, content) of a file of about 2,000 characters."""
    random.seed(0)
    content = " ".join(random.choice(WORDS) for _ in range(400))
    path = tmp_path / "play.txt"
    path.write_text(content)
    return path, content


def test_each_token_is_predicted_once_from_those_before_it(text):
    path, content = text
    data = TextDataModule(path, context=8, test_fraction=0.2, val_fraction=0.25)
    joined = ""
    for split in ("train", "val", "test"):
        x, y = data.tensors(split)
        assert torch.equal(x[:, 1:], y[:, :-1]) and torch.equal(x[1:, 0], y[:-1, -1])  # y is x one further
        part = "".join(data.pieces([int(x[0, 0]), *y.flatten().tolist()]))
        assert part in content and content.index(part[:30]) >= len(joined) - 8 * 3
        joined += part
    assert len(content) - len(joined) < 3 * 8 and content.startswith(joined[:100])
    assert data.input_shape == (8,) and data.num_classes == len(set(content))


def test_num_data_counts_tokens_and_the_energy_sums_over_them(text, tmp_path):
    """The energy of a state is -log p of every token; with N windows it would be a sixteenth of it."""
    data = TextDataModule(text[0], context=16, batch_size=10)
    x, y = data.tensors("train")
    assert data.num_data == y.numel() == 16 * len(x)
    net = bdl.models.GPT(data.num_classes, 16, width=8, layers=1, heads=2)
    build = functools.partial(
        bdl.Sampler, dynamics=bdl.SGLD(), num_data=data.num_data, lr=1e-9, prior=bdl.Uniform(), temperature=1e-9
    )
    collect = bdl.CollectSamples(bdl.schedules.EveryStep(0, 1), tmp_path, full_energy=True)
    toys.trainer(tmp_path, 3, [collect]).fit(bdl.BayesianModule(net, build), datamodule=data)
    record = bdl.SampleStore(tmp_path).records()[0]
    with torch.no_grad():
        energy = F.cross_entropy(net(x).flatten(0, 1), y.flatten(), reduction="sum")
    assert record.energy_full is not None and record.energy_full[0] == pytest.approx(energy.item(), rel=1e-4)


@pytest.mark.parametrize("factor, fits", [(1, True), (16, True), (17, False), (0.5, False)])
def test_n_may_count_items_or_their_elements_and_nothing_else(text, tmp_path, factor, fits):
    data = TextDataModule(text[0], context=16, batch_size=10)
    net = bdl.models.GPT(data.num_classes, 16, width=8, layers=1, heads=2)
    count = round(factor * len(data.tensors("train")[1]))
    module = bdl.BayesianModule(net, functools.partial(bdl.Sampler, dynamics=bdl.SGLD(), num_data=count, lr=1e-3))
    if fits:
        toys.trainer(tmp_path, 1).fit(module, datamodule=data)
    else:
        with pytest.raises(ConfigError, match=f"set num_data={data.num_data}"):
            toys.trainer(tmp_path, 1).fit(module, datamodule=data)


def test_a_folder_is_texts_of_its_files_in_order_of_their_names(tmp_path):
    for name, content in (("b.txt", "later. " * 9), ("a.txt", "sooner. " * 9), ("c.md", "never")):
        (tmp_path / name).write_text(content)
    data = TextDataModule(tmp_path, context=4)
    x, _ = data.tensors("train")
    assert "".join(data.pieces(x.flatten().tolist())).startswith("sooner. sooner.")
    assert isinstance(data.tokens, Characters) and "v" not in data.tokens.characters


def test_tokens_of_a_file_make_the_text_again(text):
    tokenizers = pytest.importorskip("tokenizers")
    path, content = text
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=60, show_progress=False)
    made.train_from_iterator([content], trainer)
    file = path.with_name("tokenizer.json")
    made.save(str(file))
    data = TextDataModule(path, tokens=file, context=8)
    x, y = data.tensors("train")
    assert content.startswith("".join(data.pieces([int(x[0, 0]), *y.flatten().tolist()])))
    assert data.num_classes == made.get_vocab_size() and data.num_data < 0.9 * len(content)


@pytest.mark.parametrize("tokens", [Characters("abn")])
def test_a_vocabulary_is_made_again_of_plain_values(tokens):
    assert tokens_of(tokens.plain()) == tokens and tokens.pieces(tokens.encode("banana", "it")) == list("banana")
    assert tokens_of({"tokens": "tokenizers", "content": "{}"}) == TokenizerFile("{}")


def test_the_law_is_named_by_the_text_and_the_windows(text):
    same, longer = TextDataModule(text[0], context=8), TextDataModule(text[0], context=16)
    assert same.identity() == TextDataModule(text[0], context=8).identity() != longer.identity()
    text[0].write_text(text[1].replace("king", "duke"))
    assert TextDataModule(text[0], context=8).identity() != same.identity()


@pytest.mark.parametrize(
    "content, arguments, line",
    [
        (b"", {}, "is empty"),
        (b"short", {"test_fraction": 0}, "train part has 5 tokens, and a window of data.context=64 needs 65"),
        (b"\xff\xfe", {}, "no UTF-8 text"),
        (b"text" * 99, {"context": 0}, "data.context must be at least 1"),
        (b"text" * 99, {"test_fraction": 1.5}, r"data.test_fraction must be in \[0, 1\)"),
        (b"text" * 99, {"tokens": "nowhere.json"}, "neither 'characters' nor a tokenizers file"),
    ],
)
def test_what_is_no_text_is_refused_in_one_line(tmp_path, content, arguments, line):
    (tmp_path / "t.txt").write_bytes(content)
    with pytest.raises(ConfigError, match=line) as refusal:
        TextDataModule(tmp_path / "t.txt", **arguments)
    assert "\n" not in str(refusal.value)


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        TextDataModule(tmp_path / "none.txt")
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", Path("/dev/zero"), Path("/proc/self/status")):  # they may never end
        with pytest.raises(ConfigError, match=f"data.path={place} cannot be read: it is no regular file"):
            TextDataModule(place)
    with pytest.raises(ConfigError, match=r"without files \*.txt"):
        TextDataModule(tmp_path)
    with pytest.raises(ConfigError, match="a word has the character 'x'"):
        Characters("abn").encode("banax", "a word")


def test_what_fills_no_window_is_left_out():
    x, y = windows(torch.arange(9), context=4)
    assert x.shape == y.shape == (2, 4) and int(y[-1, -1]) == 8
    assert windows(torch.arange(4), context=4)[0].shape == (0, 4)


def test_the_play_of_the_package_is_there():
    data = TextDataModule("package:coriolanus.txt", context=64)
    assert data.num_classes == 61 and data.num_data > 130_000 and data.name == "coriolanus"
