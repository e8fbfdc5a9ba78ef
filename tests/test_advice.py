"""Tests of `bdl.advice`: what a message tells one to write arrives as it was meant, through bash and Hydra."""

import subprocess

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from bdl.advice import override

ODD = [
    "Current Ver", "price ($)", "a,b", "[x]", "{y}", "it's", 'say "hi"', "2020", "-999", "1e5", "007", "0.50", "true",
    "NULL", "nan", "Größe", "a=b", "a:b", "${oc.env:HOME}", "\\${x}", "$HOME", "`id`", "a\\", 'a\\"', "two  blanks",
    "!x", "*", "?", "~", "#", "a;b", "a|b", "%", "no\u00a0break", "zero\u200bwidth", "'", "", "a/b", "x\ty", "-",
]  # fmt: skip


def through_bash_and_hydra(written: str) -> object:
    """What a command sees of words that somebody has pasted."""
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {written}"], capture_output=True, check=True)
    word, *others = done.stdout.decode().split("\0")
    assert others == [""], f"{written} is several words"
    parsed = OverridesParser.create().parse_override(word)
    value = parsed.value()
    return OmegaConf.to_container(OmegaConf.create({"key": value}), resolve=True)["key"]


def test_odd_names_come_through():
    assert [str(word) for word in through_bash_and_hydra(override("data.drop", ODD))] == ODD
    for word in ODD:
        assert str(through_bash_and_hydra(override("data.target", word))) == word


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r"), max_size=12), max_size=9)
)
@example(["a b", "c"])
def test_any_names_come_through(names):
    assert [str(word) for word in through_bash_and_hydra(override("data.id", names))] == names


@pytest.mark.parametrize("word", ["age", "Current Ver", "2020"])
def test_plain_names_have_no_quotes_for_hydra(word):
    assert '"' not in override("data.drop", [word])
