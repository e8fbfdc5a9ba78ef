"""bench.py gpu: its page of results, from small sizes on a CPU."""

import json
import sys
import time
from typing import Any

import pytest
import torch
from accelerated import settings
from benchmarks import frozen_part, gpu
from benchmarks.speed import on_gpu, timing
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


def test_rows_are_kept_when_the_time_of_a_section_is_over(tmp_path, monkeypatch):
    """Nothing on the way swallows it, as what falls back from a compiler's error would."""

    def slow(bench):
        yield {"ms": 1.0}
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                pytest.fail("swallowed")

    monkeypatch.setitem(gpu.SHARES, "first", 1e-4)
    text, numbers = page(tmp_path, monkeypatch, first=slow, second=one)
    assert numbers["first"] == [{"ms": 1.0}, {"failed": "Late: not done in 0 s"}] and len(numbers["second"]) == 2


def test_the_same_command_goes_on(tmp_path, monkeypatch):
    """What has ended is kept; what failed, or was under way when the process was killed, is measured again."""
    calls: list[str] = []

    def killed(bench):
        calls.append("killed")
        yield {"ms": 1.0}
        if calls.count("killed") == 1:
            raise SystemExit

    def mended(bench):
        calls.append("mended")
        if calls.count("mended") == 1:
            raise RuntimeError("no memory")
        return [{"ms": 2.0}]

    def ended(bench):
        calls.append("ended")
        return one(bench)

    sections = {"mended": mended, "ended": ended, "killed": killed, "later": one}
    with pytest.raises(SystemExit):
        page(tmp_path, monkeypatch, **sections)
    stopped = json.loads((tmp_path / "page.json").read_text())
    assert stopped["killed"] == [{"ms": 1.0}, {"failed": "stopped here"}] and "later" not in stopped
    text, numbers = page(tmp_path, monkeypatch, **sections)
    assert calls == ["mended", "ended", "killed", "mended", "killed"]
    assert {k: v for k, v in numbers.items() if k != "machine"} == {
        "mended": [{"ms": 2.0}], "ended": one(None), "killed": [{"ms": 1.0}], "later": one(None)
    }  # fmt: skip
    assert [line for line in text.splitlines() if line.startswith("## ")] == [f"## {name}" for name in sections]
    monkeypatch.setattr(gpu, "provenance", lambda device: {"device": "abacus", "versions": {}, "git_commit": None})
    with pytest.raises(UsageError, match="page.json has another device, .*: give the page another name"):
        page(tmp_path, monkeypatch, **sections)


def test_a_compiler_that_fails_is_told(monkeypatch):
    def no_compiler(function):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr("bdl.fused.compile_alone", no_compiler)
    result, seconds, failed = on_gpu.watched(lambda: on_gpu.Fused(torch.neg)(torch.ones(1)).item())
    assert result == -1 and seconds >= 0
    assert failed == "torch.compile failed, running without it: RuntimeError: no compiler here"


def test_the_sections_run_on_a_gpu(simulated, monkeypatch):
    """On the simulated one: graphs are recorded, and memory is asked for. There are no streams of a driver."""
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    for name in ("max_memory_allocated", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda: 2**20)
    monkeypatch.setitem(sys.modules, "benchmarks.speed.jax_kernels", None)
    trainer = timing.L.Trainer

    def build(**options: Any) -> Any:
        return trainer(**(options | settings() | {"precision": "32-true"}))

    monkeypatch.setattr(timing.L, "Trainer", build)
    monkeypatch.setattr(on_gpu.Bench, "precision", lambda bench: torch.autocast("cpu", enabled=False))
    monkeypatch.setattr(frozen_part, "prepare", lambda: None)
    monkeypatch.setattr(frozen_part, "PARTS", {"the last layer": ["classify.*"]})
    bench = on_gpu.Bench(torch.device("cuda"), on_gpu.SMALL)
    with simulated.counted() as seen:
        (row,) = on_gpu.small_networks(bench)
        assert row["compiled, us"] > 0 and row["MiB"] == 1 and row["failed"] is None
        assert [r["graph, ms"] > 0 for r in on_gpu.gradients(bench)] == [True, True]
        assert [r["s in 500 epochs"] > 0 for r in on_gpu.epochs(bench)] == [True, True]
        assert len(list(on_gpu.block(bench))) >= 12
        (part,) = on_gpu.parts(bench)
        assert part["SGHMC, bytes"] == part["AdamW, bytes"] == 0
    assert seen.launches


@pytest.mark.slow
def test_each_section_measures(tmp_path, monkeypatch):
    """But for tests/test_gpu.py, which small sizes leave out."""
    _, numbers = page(tmp_path, monkeypatch)
    assert list(numbers) == ["machine", *(name for name in gpu.SECTIONS if name != "tests/test_gpu.py")]
    (row,) = numbers["Stacks of small networks"]
    assert row["AWSGHMC / SGHMC"] == row["AWSGHMC, us"] / row["SGHMC, us"] > 0
    assert row["JAX, us"] is row["SGHMC / JAX"] is row["MiB"] is None
    assert [r["way"] for r in numbers["Gradients of ResNet20"]] == ["loop", "branches"]
    images, compiled = numbers["ResNet20 through the Trainer"]
    assert compiled["compile"] == "True" and images["s in 500 epochs"] == pytest.approx(
        500 * images["ms a step"] * 2 / 1e3
    )
    block = numbers["A block of steps"]
    assert block and all(row["calls a step"] > 0 for row in block)


def test_a_page_that_is_no_markdown_is_refused(tmp_path):
    with pytest.raises(UsageError, match="must end with .md"):
        gpu.main(tmp_path / "page.txt", device="cpu")


@pytest.mark.parametrize(("value", "cell"), [(None, "–"), (3, "3"), (1234.5, "1,234"), (0.12345, "0.123")])
def test_a_cell(value, cell):
    assert gpu.shown(value) == cell
