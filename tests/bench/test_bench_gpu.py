"""bench.py gpu: its page of results, from small sizes on a CPU."""

from __future__ import annotations

import json
import sys

import pytest
from benchmarks import gpu
from tools.command import UsageError


def page(tmp_path, monkeypatch, **sections) -> tuple[str, dict]:
    """The page and the numbers of a machine without JAX, on a CPU."""
    monkeypatch.setitem(sys.modules, "benchmarks.speed.jax_kernels", None)
    if sections:
        monkeypatch.setattr(gpu, "SECTIONS", sections)
    gpu.main(tmp_path / "page.md", device="cpu", small=True)
    return (tmp_path / "page.md").read_text(), json.loads((tmp_path / "page.json").read_text())


def one(bench) -> list[dict]:
    """What it measures,
    in a line."""
    return [{"way": "loop", "ms": 1234.5}, {"way": "branches", "ms": None, "MiB": 0.5}]


def fails(bench) -> list[dict]:
    raise RuntimeError("no memory\nat all")


def test_a_page_has_card_date_tables_and_what_failed(tmp_path, monkeypatch):
    text, numbers = page(tmp_path, monkeypatch, first=one, second=fails)
    machine = numbers.pop("machine")
    assert text.startswith(f"# {machine['device']}, {machine['date']}\n\nbdl {machine['versions']['bdl']}")
    assert "## first\n\nWhat it measures, in a line.\n\n| way | ms | MiB |" in text
    assert "| loop | 1,234 | – |\n| branches | – | 0.5 |" in text and "RuntimeError: no memory |" in text
    assert numbers == {"first": one(None), "second": [{"failed": "RuntimeError: no memory"}]}


@pytest.mark.slow
def test_each_section_measures(tmp_path, monkeypatch):
    """But for tests/test_gpu.py, which small sizes leave out."""
    _, numbers = page(tmp_path, monkeypatch)
    assert list(numbers) == ["machine", *(name for name in gpu.SECTIONS if name != "tests/test_gpu.py")]
    (row,) = numbers["Stacks of small networks"]
    assert row["AWSGHMC / SGHMC"] == row["AWSGHMC, us"] / row["SGHMC, us"] > 0
    assert row["JAX, us"] is row["SGHMC / JAX"] is row["MiB"] is None
    assert [r["way"] for r in numbers["Gradients of ResNet20"]] == ["loop", "branches"]
    (images,) = numbers["ResNet20 through the Trainer"]
    assert images["s in 500 epochs"] == pytest.approx(500 * images["ms a step"] * 2 / 1e3)
    block = numbers["A block of steps"]
    assert block and all(row["calls a step"] > 0 for row in block)


def test_a_page_that_is_no_markdown_is_refused(tmp_path):
    with pytest.raises(UsageError, match="must end with .md"):
        gpu.main(tmp_path / "page.txt", device="cpu")


@pytest.mark.parametrize(("value", "cell"), [(None, "–"), (3, "3"), (1234.5, "1,234"), (0.12345, "0.123")])
def test_a_cell(value, cell):
    assert gpu.shown(value) == cell
