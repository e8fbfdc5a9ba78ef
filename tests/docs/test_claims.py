"""Numbers of the README and of docs/ are those of committed results: scripts/check_claims.py and its modules."""

import json
import random
import subprocess
import sys

import pytest
from check_claims import CLAIMS, PAGES, check, claims_of, load
from composing import ROOT, SCRIPTS
from repeats import slow_where
from tools.claim_entries import read
from tools.claims import ClaimError, evaluate
from tools.page_numbers import paragraphs

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
SENTENCE = "The NLL is 0.230 ± 0.028, R-hat 1.04.\n"
CLAIM = """
[[claim]]
text = "The NLL is … R-hat …"
result = 'run.json: spread(runs.nll) .3f; max(runs."rhat/max") .2f'
"""


@pytest.fixture
def faults(tmp_path):
    """The faults of a page with its entries, beside a result and a table. The keyword `result` replaces its parts."""

    def of(text: str, claims: str = "", **result) -> list[str]:
        (tmp_path / "run.json").write_text(json.dumps(RESULT | result))
        (tmp_path / "run-table.md").write_text(TABLE)
        (tmp_path / "page.md").write_text(text)
        (tmp_path / "page.toml").write_text(claims)
        load.cache_clear()
        return check(tmp_path / "page.md", tmp_path / "page.toml", tmp_path)

    return of


def claim(text: str, **keys) -> str:
    return "\n[[claim]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in {"text": text, **keys}.items())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_number_is_that_of_its_result(page):
    assert check(page, claims_of(page), SCRIPTS / "results") == []


def test_each_file_of_claims_has_its_page():
    assert {file.stem for file in CLAIMS.iterdir()} <= {page.stem for page in PAGES}


def test_no_page_has_a_hidden_comment():
    tracked = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [name for name in tracked.stdout.split() if "<!--" in (ROOT / name).read_text()] == []


@pytest.mark.parametrize("changes", slow_where(lambda changes: changes == 300, (30, 300)))
def test_each_measured_number_is_red_when_a_digit_changes(changes, tmp_path):
    """But for numbers that an entry says to be no measurement of ours."""
    random.seed(changes)
    places = [(page, number) for page in PAGES for number in claimed(page)]
    assert len(places) > 1000
    for page, number in random.sample(places, changes):
        text = page.read_text()
        digit = random.choice([i for i, sign in enumerate(number.text) if sign.isdigit()])
        place = text.index(number.text, number.place) + digit
        (tmp_path / page.name).write_text(f"{text[:place]}{(int(text[place]) + 1) % 10}{text[place + 1 :]}")
        assert check(tmp_path / page.name, claims_of(page), SCRIPTS / "results"), (page.name, number)


def claimed(page):
    """The measured numbers of a page but those that the reason of an entry speaks of."""
    in_page = paragraphs(text := page.read_text())
    free = [(entry.find(text, in_page), entry.exempt) for entry in read(claims_of(page)) if entry.reason]
    for number in (number for paragraph in in_page for number in paragraph.numbers() if number.measured):
        around = [exempt for part, exempt in free if part.start <= number.place < part.end]
        if not any(number.text in exempt or not exempt for exempt in around):
            yield number


def test_the_script_needs_no_torch():
    code = "import sys; sys.argv = ['check']; import check_claims; print(check_claims.main([]), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=SCRIPTS, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0 False", done.stderr


def test_a_number_that_is_changed_on_the_page_is_red(faults):
    assert faults(SENTENCE, CLAIM) == []
    for shown, changed in (("0.230", "0.231"), ("0.028", "0.027"), ("1.04", "1.05"), ("1.04", "-1.04")):
        found = faults(SENTENCE.replace(shown, changed, 1), CLAIM)
        assert any("the result says" in fault and fault.endswith("(page.toml:2)") for fault in found)


def test_a_text_that_the_page_does_not_have_is_red(faults):
    found = faults(SENTENCE.replace("NLL is", "loss is"), CLAIM)
    assert found[0].startswith("page.toml:2: the page has no 'The NLL is … R-hat …': copy the words")
    assert found[1:] == [f"page.md:1: {n} has no result: name it in page.toml" for n in ("0.230", "0.028", "1.04")]


def test_numbers_that_change_places_are_red(faults):
    text, entry = "NLL 0.21 and 0.25.", claim("NLL … and …", result="run.json: runs[0].nll .2f; runs[1].nll .2f")
    assert faults(text, entry) == []
    assert faults(text.replace("0.21 and 0.25", "0.25 and 0.21"), entry)


def test_a_result_that_is_changed_is_red(faults):
    runs = [*RESULT["runs"][:1], RESULT["runs"][1] | {"nll": 0.26}]
    assert any("the result says 0.235" in fault for fault in faults(SENTENCE, CLAIM, runs=runs))


def test_a_reference_to_a_missing_file_or_number_is_red(faults):
    assert any("there is no none.json" in fault for fault in faults(SENTENCE, CLAIM.replace("run.json", "none.json")))
    assert any("has no 'mll'" in fault for fault in faults(SENTENCE, CLAIM.replace("runs.nll", "runs.mll")))


@pytest.mark.parametrize("key, name", [("bdl", "version"), ("device", "machine"), ("date", "date")])
def test_a_result_that_does_not_say_its_origin_is_red(faults, key, name):
    assert any(f"run.json does not say its {name}" in fault for fault in faults(SENTENCE, CLAIM, **{key: None}))


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
    excerpt = text.splitlines()[0]
    assert faults(text, claim(excerpt, reason="an example")) == []


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


def test_an_entry_speaks_of_its_text_alone(faults):
    for text in (f"It takes 12 ms.\n\n{SENTENCE}", f"It takes 12 ms. {SENTENCE}"):
        assert faults(text, CLAIM) == ["page.md:1: 12 has no result: name it in page.toml"]
    assert faults(f"{SENTENCE}It takes 12 ms.", CLAIM) == ["page.md:2: 12 has no result: name it in page.toml"]


def test_the_text_of_an_entry_has_line_breaks_and_gaps_of_page(faults):
    text = SENTENCE.replace("NLL is", "NLL\n  is").replace(", R-hat", ", behind [a link](page.md), R-hat")
    assert faults(text, CLAIM) == []
    assert faults("0.230 ± 0.028 is low.", claim("… is low", result="run.json: spread(runs.nll) .3f")) == []
    assert faults("0.21, 0.230 ± 0.028 is low.", claim("± … is", result="run.json: std(runs.nll) .3f"))


def test_two_entries_do_not_speak_of_one_text(faults):
    assert any("another entry speaks" in fault for fault in faults(SENTENCE, CLAIM + CLAIM))
    assert any("2 times: add words" in fault for fault in faults(f"{SENTENCE}\n{SENTENCE}", CLAIM))


def test_beside_a_result_the_exempt_numbers_are_named(faults):
    text, behind = SENTENCE.replace("1.04.", "1.04, published 1.30."), CLAIM.replace("R-hat …", "published …")
    assert faults(text, behind) == ["page.md:1: 1.30 has no result (page.toml:2)"]
    assert faults(text, f'{behind}exempt = ["1.30"]\nreason = "published"') == []
    assert any("1.31, which the text" in f for f in faults(text, f'{behind}exempt = ["1.31"]\nreason = "published"'))


@pytest.mark.parametrize(
    "entry, fault",
    [
        (claim("The NLL", reason="an example", exempt="1.30"), "exempt: an entry has text"),
        (claim("The NLL", reason="an example", value=1), "value: an entry has text"),
        (claim("…", reason="an example"), "an entry needs its `text`"),
        (claim("The NLL"), "an entry needs a `result`"),
        (claim("The NLL", result="run.json: runs.nll .2f", exempt=["1.30"]), "`exempt` needs the `reason`"),
        (claim("The NLL", result="run.json: runs.nll .2f", reason="published"), "`exempt` lists the numbers"),
    ],
)
def test_an_entry_that_is_wrong_is_named_by_its_line(faults, entry, fault):
    (found,) = faults(SENTENCE, f"# a page\n{entry}")
    assert found.startswith("page.toml:3: ") and fault in found


def test_an_entry_that_frees_no_number_is_red(faults):
    found = faults("There are 8 chains.", claim("There are … chains", reason="a setting"))
    assert found == ["page.md:1: the text claims no measurement: delete the entry (page.toml:2)"]


def test_a_file_that_is_no_toml_is_red(faults):
    assert faults(SENTENCE, "[[claim]]\ntext = The NLL")[0].startswith("page.toml: ")
    assert faults(SENTENCE, '[[claims]]\ntext = "The NLL"') == [
        "page.toml: claims is not known; an entry begins with [[claim]]"
    ]


def test_rows_stand_in_the_file(faults):
    shown, entry = "\n".join(TABLE.splitlines()[2:]), claim("| method | NLL", result="run-table.md: rows")
    assert faults(shown, entry) == []
    assert any("has no row" in fault for fault in faults(shown.replace("1,200", "1,201"), entry))


def test_cells_of_a_table_and_words_can_be_claimed(faults):
    text = "0.25 ± 0.03 nats in 90 s: trust, more samples\n"
    result = "run-table.md @ tables[0][method=tuned]: NLL s; seconds .0f\nrun.json: runs.verdict s"
    entry = claim("… nats in … samples", result=result)
    assert faults(text, entry) == []
    assert faults(text.replace("trust, more", "trust, less"), entry)
    assert faults(text.replace("± 0.03", "± 0.04"), entry)


def test_words_can_be_bounded_and_references_repeated(faults):
    assert faults("About a quarter.", claim("a quarter", result="run.json: runs[1].nll in 0.2 .. 0.3")) == []
    assert any("not in" in f for f in faults("A half.", claim("A half", result="run.json: runs[1].nll in 0.4 .. 0.6")))
    text, entry = "NLL 0.21, 0.25", claim("NLL …", result="run.json @ runs[seed=$] each 0 | 1: nll .2f")
    assert faults(text, entry) == [] and faults(text.replace("0.25", "0.26"), entry)


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
