"""bench.py frozen_part: a small network, the three parts, and its file of results."""

import json
import sys

import pytest
import torch
from benchmarks import frozen_part


@pytest.fixture
def usual_encoders():
    """`prepare` is for processes of their own."""
    threads, fast = torch.get_num_threads(), torch.backends.mha.get_fastpath_enabled()
    yield
    torch.set_num_threads(threads)
    torch.backends.mha.set_fastpath_enabled(fast)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", frozen_part.PARTS)
def test_both_train_the_same_part(part, usual_encoders):
    if part.startswith("LoRA"):
        pytest.importorskip("peft")
    row = frozen_part.times(part, 8, 2, 1)
    classify, block = 90, sum(p.numel() for p in torch.nn.TransformerEncoderLayer(8, 4, 32).parameters())
    assert row["sampled"] == classify + {"the last layer": 0, "the last block": block}.get(part, 2 * 2 * 8 * (8 + 32))
    assert row["time"] == row["SGHMC, ms"] / row["AdamW, ms"] > 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_peak_is_above_what_the_part_needs():
    """In processes of their own, since one that has freed memory uses it again."""
    cases = [("the last block", 256, 1, sampled) for sampled in (True, False)]
    assert min(frozen_part.in_new_processes(frozen_part.peak, cases)) > 12 * 790_000  # gradient and two vectors, fp32


def test_the_file_says_machine_and_memory_of_each_frozen_parameter(monkeypatch, tmp_path, capsys):
    rows = [{"part": part, "frozen": 100, "time": 1.01} for part in frozen_part.PARTS]
    answers = iter([rows, [700, 300] * 3])
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "1")
    monkeypatch.setattr(frozen_part, "in_new_processes", lambda work, cases: next(answers))
    monkeypatch.setattr(frozen_part, "find_spec", lambda name: object())
    frozen_part.main(tmp_path / "out.json")
    written = json.loads((tmp_path / "out.json").read_text())
    assert [row["memory"] for row in written["rows"]] == [4.0] * 3 and {"bdl", "device", "date"} <= {
        *written["machine"]
    }
    assert "the last layer: a step takes 1.010 of AdamW's, +4.000 bytes a frozen parameter" in capsys.readouterr().out
