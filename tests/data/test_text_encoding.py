"""Tests of `bdl.data.text_encoding`: tables that are not UTF-8 are read as they were written, or said, or refused."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from bdl.data.table import read_table
from bdl.data.table_encoding import TableEncoding
from bdl.data.text_encoding import BLOCK, guess_encoding
from bdl.errors import BdlWarning, ConfigError

CITIES = ("Köln", "Münster", "Bonn")
TEXT = "Größe,Stadt,y\n" + "".join(f"{i % 7}.5,{CITIES[i % 3]},{i * 1.25}\n" for i in range(30))
LEVELS = ("Bonn", "Köln", "Münster")


def table(folder: Path, text: bytes, name: str = "table.csv") -> Path:
    (path := folder / name).write_bytes(text)
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1", "cp1252", "cp437"])
def test_a_table_is_the_same_in_every_encoding(tmp_path, encoding):
    plain = read_table(table(tmp_path, TEXT.encode()), "y")
    given = {} if encoding.startswith("utf") else {"encoding": encoding}
    with warnings.catch_warnings(action="error"):  # a mark, UTF-8 and a name leave no doubt
        data = read_table(table(tmp_path, TEXT.encode(encoding)), "y", **given)
    assert data.encoding.inputs == plain.encoding.inputs and data.encoding.inputs.columns[1].levels == LEVELS
    assert (data.tensors("train")[0] == plain.tensors("train")[0]).all()


@pytest.mark.parametrize("sign, guess", [("", "latin-1"), ("€", "cp1252"), ("“", "cp1252")])
def test_a_guess_shows_a_word_and_is_kept(tmp_path, sign, guess):
    path = table(tmp_path, TEXT.replace("Bonn", f"Bonn{sign}").encode("cp1252"))
    with pytest.warns(BdlWarning, match=f"data.path=.* read as {guess}, .* 'Größe'.*data.encoding={guess} says so"):
        data = read_table(path, "y")
    assert data.encoding.inputs.columns[1].levels == (f"Bonn{sign}", "Köln", "Münster")
    encoding = TableEncoding.from_plain(json.loads(json.dumps(data.preprocessing())))
    assert encoding == data.encoding and encoding.reading.encoding == guess


def test_rows_to_predict_may_have_another_encoding(tmp_path):
    reading = read_table(table(tmp_path, TEXT.encode("latin-1")), "y", encoding="latin-1").encoding.reading
    for encoding, said in (("utf-8", "is UTF-8 text.*'Größe'.*was latin-1"), ("cp1252", "read as cp1252.*was latin-1")):
        path = table(tmp_path, TEXT.replace("Bonn", "Bonn€").encode(encoding), "new.csv")
        with pytest.warns(BdlWarning, match=said):
            assert list(reading.read(path, "input", ["Stadt"])["Stadt"][:3]) == ["Köln", "Münster", "Bonn€"]
    with warnings.catch_warnings(action="error"):  # the encoding of the table, and a mark, leave no doubt
        for encoding in ("latin-1", "utf-16"):
            rows = reading.read(table(tmp_path, TEXT.encode(encoding), "new.csv"), "input", ["Stadt"])
            assert list(rows["Stadt"][:3]) == ["Köln", "Münster", "Bonn"]


def test_utf8_that_is_read_as_something_else_is_said(tmp_path):
    with pytest.warns(BdlWarning, match="read as cp1252, .* 'GrÃ¶ÃŸe', and is UTF-8 text too, with 'Größe'"):
        read_table(table(tmp_path, TEXT.encode()), "y", encoding="cp1252")


@pytest.mark.parametrize(
    "text, settings, line",
    [
        (TEXT.encode("utf-16-le"), {}, "zero bytes, as UTF-16 without its mark.*set data.encoding=utf-16-le"),
        (TEXT.encode() + "Köln".encode("cp437") + b"\x81,1,2\n", {}, "no UTF-8 text, and neither latin-1 nor cp1252"),
        (TEXT.encode("latin-1"), {"encoding": "utf-8"}, "is no utf-8 text .*: correct data.encoding"),
        (TEXT.encode(), {"encoding": "latin-99"}, "data.encoding=latin-99 is no encoding that Python knows"),
        (TEXT.encode(), {"encoding": "base64"}, "data.encoding=base64 is no encoding that Python knows"),
    ],
)
def test_what_cannot_be_guessed_is_refused_in_one_line(tmp_path, text, settings, line):
    with pytest.raises(ConfigError, match=line) as error:
        read_table(table(tmp_path, text), "y", **settings)
    assert "\n" not in str(error.value)


def test_letters_across_blocks_are_found(tmp_path):
    for cut in range(3):  # a letter of three bytes begins up to two bytes before the end of a block
        assert guess_encoding(table(tmp_path, b"a" * (BLOCK - cut) + "€".encode()), "path") == "utf-8"
        with pytest.warns(BdlWarning, match="is no UTF-8"):
            assert guess_encoding(table(tmp_path, b"a" * (BLOCK - cut) + "€".encode() + b"\xe9"), "path") != "utf-8"


def test_numbers_of_a_table_in_utf16_are_numbers(tmp_path):
    data = read_table(table(tmp_path, TEXT.encode("utf-16")), "y")
    assert np.isclose(data.encoding.inputs.columns[0].fill, 3.0) and data.encoding.reading.encoding == "utf-16"
