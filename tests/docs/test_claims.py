"""Numbers of the README and of docs/ are those of committed results: scripts/check_claims.py, claims.py."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from check_claims import PAGES, check, load
from composing import SCRIPTS
from tools.claims import ClaimError, evaluate

RESULT = {
    "bdl": "0.2.0",
    "device": "a CPU",
    "date": "2026-01-02",
    "runs": [
        {"seed": 0, "nll": 0.21, "bma": {"accuracy": 0.92}, "rhat/max": 1.02, "verdict": "trust"},
        {"seed": 1, "nll": 0.25, "bma": {"accuracy": 0.94}, "rhat/max": 1.04, "verdict": "more samples"},
    ],
}
TABLE = """bdl 0.2.0, one of 2 cores of a CPU, 2026-01-02

| method | NLL | seconds |
|---|---|---|
| `plain` | 0.21 ± 0.02 | 1,200 |
| tuned | 0.25 ± 0.03 | 90 |
"""
SENTENCE = (
    'The NLL is 0.230 ± 0.028, R-hat 1.04.\n<!-- result run.json: spread(runs.nll) .3f; max(runs."rhat/max") .2f -->\n'
)


@pytest.fixture
def faults(tmp_path):
    """The faults of a page, beside a result and a table. The keyword `result` replaces parts of the result."""

    def of(text: str, **result) -> list[str]:
        (tmp_path / "run.json").write_text(json.dumps(RESULT | result))
        (tmp_path / "run-table.md").write_text(TABLE)
        (tmp_path / "page.md").write_text(text)
        load.cache_clear()
        return check(tmp_path / "page.md", tmp_path)

    return of


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_number_is_that_of_its_result(page):
    assert check(page, SCRIPTS / "results") == []


def test_the_script_needs_no_torch():
    code = "import sys; sys.argv = ['check']; import check_claims; print(check_claims.main([]), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=SCRIPTS, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0 False", done.stderr


def test_a_number_that_is_changed_on_the_page_is_red(faults):
    assert faults(SENTENCE) == []
    for shown, changed in (("0.230", "0.231"), ("0.028", "0.027"), ("1.04", "1.05"), ("1.04", "-1.04")):
        assert any("the result says" in fault for fault in faults(SENTENCE.replace(shown, changed, 1)))


def test_numbers_that_change_places_are_red(faults):
    text = "NLL 0.21 and 0.25.\n<!-- result run.json: runs[0].nll .2f; runs[1].nll .2f -->\n"
    assert faults(text) == []
    assert faults(text.replace("0.21 and 0.25", "0.25 and 0.21"))


def test_a_result_that_is_changed_is_red(faults):
    runs = [*RESULT["runs"][:1], RESULT["runs"][1] | {"nll": 0.26}]
    assert any("the result says 0.235" in fault for fault in faults(SENTENCE, runs=runs))


def test_a_reference_to_a_missing_file_or_number_is_red(faults):
    assert any("there is no none.json" in fault for fault in faults(SENTENCE.replace("run.json", "none.json")))
    assert any("has no 'mll'" in fault for fault in faults(SENTENCE.replace("runs.nll", "runs.mll")))


@pytest.mark.parametrize("key, name", [("bdl", "version"), ("device", "machine"), ("date", "date")])
def test_a_result_that_does_not_say_its_origin_is_red(faults, key, name):
    assert any(f"run.json does not say its {name}" in fault for fault in faults(SENTENCE, **{key: None}))


@pytest.mark.parametrize(
    "text",
    [
        "It takes 12 ms.",
        "It takes 85 core-seconds, in 640 MiB.",
        "The error is 7 %.",
        "It is 1.6 times as fast.",
        "An NLL of 0.21 is good.",
        "R-hat is at most 1.02; the ESS is large.",
        "12.1 ± 0.3",
        "| run | NLL |\n|---|---|\n| plain | 0.21 |",
        "| run | time in s |\n|---|---|\n| plain | 21 |".replace("time in ", ""),
        "| run | one | two |\n|---|---|---|\n| plain | 0.21 | 0.22 |",
    ],
)
def test_a_measured_number_without_a_result_is_red(faults, text):
    assert any("has no result" in fault for fault in faults(text))
    assert faults(f"{text}\n\n<!-- no claim: an example -->\n") == []


@pytest.mark.parametrize(
    "text",
    [
        "The step size is 0.1, with 8 chains.",
        "`lr=0.1` gives an NLL.",
        "```python\nnll = 0.21  # NLL, 3 ms\n```",
        "## 12 ms",
        "| key | default |\n|---|---|\n| `chains` | 8 |\n| `stacks` | one |\n| `seed` | of the run |",
    ],
)
def test_settings_code_and_headings_need_no_result(faults, text):
    assert faults(text) == []


def test_a_reference_speaks_of_the_text_before_it_alone(faults):
    assert faults(f"It takes 12 ms.\n\n{SENTENCE}") == ["page.md:1: 12 has no result"]
    assert faults(f"{SENTENCE}It takes 12 ms.") == ["page.md:3: 12 has no result"]


def test_beside_a_result_no_claim_names_its_numbers(faults):
    text = SENTENCE.replace("1.04.", "1.04, published 1.30.")
    assert faults(text) == ["page.md:1: 1.30 has no result"]
    assert faults(f"{text}<!-- no claim 1.30: published -->\n") == []
    assert any("lists its numbers" in fault for fault in faults(f"{text}<!-- no claim: published -->\n"))
    assert faults("12 ms\n<!-- no claim -->") == ["page.md:1: 12 has no result"]  # it lacks its reason


def test_rows_stand_in_the_file(faults):
    shown = "\n".join(TABLE.splitlines()[2:]) + "\n\n<!-- result run-table.md: rows -->\n"
    assert faults(shown) == []
    assert any("has no row" in fault for fault in faults(shown.replace("1,200", "1,201")))


def test_cells_of_a_table_and_words_can_be_claimed(faults):
    text = (
        "0.25 ± 0.03 nats in 90 s: trust, more samples\n"
        "<!-- result run-table.md @ tables[0][method=tuned]: NLL s; seconds .0f\nrun.json: runs.verdict s -->"
    )
    assert faults(text) == []
    assert faults(text.replace("trust, more", "trust, less"))
    assert faults(text.replace("± 0.03", "± 0.04"))


def test_words_can_be_bounded_and_references_repeated(faults):
    assert faults("About a quarter.\n<!-- result run.json: runs[1].nll in 0.2 .. 0.3 -->") == []
    assert any("not in" in f for f in faults("About a half.\n<!-- result run.json: runs[1].nll in 0.4 .. 0.6 -->"))
    text = "NLL 0.21, 0.25\n<!-- result run.json @ runs[seed=$] each 0 | 1: nll .2f -->"
    assert faults(text) == [] and faults(text.replace("0.25", "0.26"))


def test_a_number_without_its_zero_is_red(faults):
    assert faults("The step size is .5 here.") == ["page.md:1: write 0.5 with its zero"]


@pytest.mark.parametrize(
    "expression, value",
    [
        ("2 + 3 * 4 - 1", 13),
        ("-(2 - 3) / 4", 0.25),
        ("100 * (1 - runs.bma.accuracy)", [8, 6]),
        ("mean(runs.nll)", 0.23),
        ("error(runs.nll)", [0.23, 0.02]),
        ("median(runs.nll) - min(runs.nll)", 0.02),
        ("runs[1].nll - runs[0].nll", 0.04),
        ("runs[seed=1].nll", 0.25),
        ("runs[seed=max].nll", 0.25),
        ('runs[verdict="more samples"]."rhat/max"', 1.04),
        ("count(runs)", 2),
    ],
)
def test_expressions(expression, value):
    assert evaluate(expression, RESULT) == pytest.approx(value)


@pytest.mark.parametrize(
    "expression",
    [
        "runs.nll +",
        "runs[5]",
        "runs[seed=7]",
        "mean(3)",
        "open(runs)",
        "runs.nll runs",
        "runs.verdict * 2",
        "(1",
        "a ^ b",
        "",
    ],
)
def test_expressions_that_are_refused(expression):
    with pytest.raises(ClaimError):
        evaluate(expression, RESULT)
