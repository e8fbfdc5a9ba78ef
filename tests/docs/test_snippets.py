"""What the README and the pages of docs/ show runs as it stands: Python blocks, keys, links."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from composing import CONF, composed
from forked import Forked
from omegaconf import OmegaConf
from pages import CONTRIBUTING, PAGES, README, ROOT, blocks, commands_of, options
from repeats import slow_where

import bdl
from bdl.run.validate import arguments_of, fitting

SMALL = ("length=60", "chains=2", "collect.keep.burn_in=20", "collect.keep.every=10", "logger=none", "train_items=200")
LONG = ("own-network", "predictions", "rare-classes", "tutorial-sklearn", "tutorial-table")  # most of the time of all
WITH_PYTHON = [page for page in PAGES if blocks(page, "python")]


def name(value) -> str:
    return value.stem if hasattr(value, "stem") else " ".join(value)


@pytest.mark.usefixtures("unwritten_pictures")
@pytest.mark.parametrize("page", slow_where(lambda page: page.stem in LONG, WITH_PYTHON), ids=name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    """In order, in one namespace per page. Runs that the page names by `hydra.run.dir` are made too, shortened, and
    their predictions."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for block in blocks(page, "bash", "python"):
        if block.language == "bash":
            for command in commands_of(block):
                run_shortened(command, tmp_path)
        else:  # blank lines, so that a traceback shows the line of the page
            exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), namespace)
    assert namespace.keys() > {"__name__", "__builtins__"}


def test_blocks_for_packages_that_are_not_installed_import_what_bdl_has():
    """Those in `py`, which no test runs: BoTorch, skpro, probly, ScoringBench, Pyro."""
    trees = [ast.parse(block.code) for page in PAGES for block in blocks(page, "py")]
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = {(node.module, each.name) for node in imports for each in node.names if node.module.startswith("bdl.")}
    assert len(trees) == 5 and len(ours) > 4
    for module, wanted in ours:
        body = ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text()).body
        assert wanted in {getattr(node, "name", None) for node in body}, (module, wanted)


def run_shortened(command: list[str], folder: Path) -> None:
    """Run a command that names a run: `train.py` with `hydra.run.dir`, or `predict.py` on a run of the page."""
    train, predict = options(command, "train"), options(command, "predict")
    if train and any(o.startswith("hydra.run.dir=") for o in train):
        start = ["start.epochs=5"] if "data=csv" in train else []
        call = ["train.py", *(o for o in train if not o.startswith("length=")), *SMALL, *start]
    elif predict and any(o.startswith("run=") and (folder / o.removeprefix("run=")).exists() for o in predict):
        call = ["predict.py", *predict]
    else:
        return
    process = Forked([str(ROOT / "scripts" / call[0]), *call[1:]], folder)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err


def test_the_pages_have_python_blocks():
    assert sum(len(blocks(page, "python")) for page in PAGES) >= 12


def test_words_with_brackets_are_quoted():
    """zsh, the shell of macOS, takes `data.id=[address]` for a pattern of file names and refuses the command."""
    code = [block.code for page in PAGES for block in blocks(page, "bash")]
    lines = [line for text in code for line in re.sub(r"'[^']*'|\"[^\"]*\"|#.*", "", text).splitlines()]
    assert [line for line in lines if set(line) & set("[]")] == []


def test_all_commands_on_one_table_say_what_its_texts_are():
    """A column with another text in every row is refused: who follows the pages has one houses.csv."""
    trained = [c for page in PAGES for block in blocks(page, "bash") for c in commands_of(block) if options(c, "train")]
    of_houses = [" ".join(command) for command in trained if "data.path=houses.csv" in command]
    assert len(of_houses) > 5 and [c for c in of_houses if "data.id=[address]" not in c] == []


def test_commands_of_the_site_fit_into_a_window_of_1280_pixels():
    pages = [page for page in PAGES if page.parent.name == "docs"]
    lines = [(page.name, line) for page in pages for block in blocks(page, "bash") for line in block.code.splitlines()]
    wide = [(name, line) for name, line in lines if len(line) > 95]
    assert [(name, line) for name, line in wide if len(line.removesuffix("\\").split()) > 1] == []  # words are not cut


def keys_below(node, place: str = ""):
    """Every key of a YAML file with those above it: `collect.keep.every`."""
    for key, value in node.items() if isinstance(node, dict) else ():
        yield f"{place}{key}"
        yield from keys_below(value, f"{place}{key}.")


def test_keys_in_the_text_are_those_of_a_file():
    """Keys with a dot, as `sampler.lr=0.1` has one; others may be choices of a group, or code."""
    known = set()
    for path in CONF.rglob("*.yaml"):
        text, group = path.read_text(), path.parent.relative_to(CONF).parts
        known.update(
            keys_below(yaml.safe_load(text), "" if "@package _global_" in text or not group else f"{'.'.join(group)}.")
        )
    shown = [
        (page.stem, word)
        for page in PAGES
        for code in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))
        for word in code.replace("'", "").split()
        if re.match(r"[a-z_]\w*(\.\w+)+=", word) and not word.startswith("hydra.")
    ]
    assert len(shown) > 40
    assert [(page, word) for page, word in shown if word.partition("=")[0] not in known] == []


@pytest.mark.parametrize(
    "group", ["schedule", "data", "model", "loss", "collect", "trainer", "logger", "baseline", "epochs"]
)
def test_every_choice_of_a_group_is_listed(group):
    row = next(
        line for line in (ROOT / "docs" / "command-line.md").read_text().splitlines() if f"| `{group}` |" in line
    )
    assert {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")} == set(re.findall(r"`(\w+)`", row)) - {group}


def test_every_sampler_is_listed():
    table = [line for line in (ROOT / "docs" / "samplers.md").read_text().splitlines() if line.startswith("| `")]
    listed = {word for line in table for word in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert {path.stem for path in (ROOT / "conf" / "sampler").glob("*.yaml")} - {"default"} <= listed


def test_every_experiment_of_reproduce_is_listed():
    from literature import REGISTRY

    listed = set(re.findall(r"`([\w-]+)`", (ROOT / "docs" / "literature.md").read_text()))
    assert set(REGISTRY) <= listed


def test_the_files_of_the_samplers_exist():
    table = (ROOT / "docs" / "architecture.md").read_text().partition("## Files of the samplers")[2]
    files = re.findall(r"`([\w/]+(?:\.py|/))`", table)
    assert len(files) >= 10
    assert [file for file in files if not (ROOT / "bdl" / "samplers" / file).exists()] == []


def test_the_page_on_cifar_shows_the_table_that_is_committed():
    """All rows of runs that have ended."""
    table = (ROOT / "scripts" / "results" / "reproduce" / "cifar10" / "table.md").read_text()
    rows = [line for line in table.splitlines() if line.startswith("|") and "| – | – | – |" not in line]
    assert len(rows) > 2 and "\n".join(rows) in (ROOT / "docs" / "cifar.md").read_text()


def test_readme_is_short_and_its_links_lead_somewhere():
    assert len(README.read_text().splitlines()) <= 110
    for page in (README, CONTRIBUTING):
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert link.startswith("https://") or (page.parent / link).exists(), link


def test_ci_runs_the_test_command_of_the_readme():
    """`.ci/run` takes one line out of the section "## Tests", which makes the environment and runs the tests."""
    extract = re.search(r"^tests=(\$\(.*\))$", (ROOT / ".ci" / "run").read_text(), re.M)
    assert extract
    shell = subprocess.run(["bash", "-c", f"echo {extract[1]}"], cwd=ROOT, capture_output=True, text=True, check=True)
    words = shell.stdout.split()
    assert words.count("&&") == 2 and words[:4] == ["python3", "-m", "venv", ".venv"] and "pytest" in words
    assert shell.stdout.strip() in CONTRIBUTING.read_text()


def test_the_changelog_says_what_users_must_know():
    versions = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1:]
    assert all(version.count("\n- ") <= 10 for version in versions)
    assert sum(version.count("\n") for version in versions) <= 150


def test_the_release_has_one_version_and_one_date():
    """In the package, which the build reads, in the changelog and in the citation."""
    newest = re.search(r"^## (\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest and newest[1] == bdl.__version__
    assert f"version: {newest[1]}\ndate-released: {newest[2]}\n" in (ROOT / "CITATION.cff").read_text()
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in built["project"]["dynamic"] and "version" not in built["project"]
    assert built["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "bdl.__version__"}


def test_values_of_keys_in_the_tables_of_a_page_are_taken():
    """A row such as | `data.missing` | words for a gap, such as `[k.A.,-999]` |: each value in it that is a list."""
    text = (ROOT / "docs" / "tables.md").read_text()
    rows = re.findall(r"^\| `(data\.\w+)` \|(.*)$", text, re.M)
    examples = [(key, value) for key, row in rows for value in re.findall(r"`(\[[^`]*\])`", row)]
    assert ("data.missing", "[k.A.,-999]") in examples
    for key, value in examples:
        cfg = composed("data=csv", "data.path=t.csv", "data.target=y", f"{key}={value}")
        wanted = arguments_of(bdl.data.read_table)[0][key.removeprefix("data.")]
        assert all(type(word) is str for word in fitting(key, OmegaConf.select(cfg, key), wanted)), f"{key}={value}"
