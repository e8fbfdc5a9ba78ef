"""The structure of the code: no import circles, arrows that run down the layers, no private names of another class."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"bdl": ROOT / "bdl", "literature": ROOT / "scripts" / "literature"}
# From the ground up; a layer may import those before it
LAYERS = [
    {
        "errors", "advice", "collector", "cpu", "interrupts", "devices", "lent", "seeding", "batch", "disk", "display",
        "frozen", "psi", "schedules",
        "likelihoods", "identity", "forward_code", "snapshot", "torch_private", "checkpoint", "native", "parts", "lean",
        "fused",
    },
    {"samplers"},
    {"engine"},
    {"posterior", "models", "data"},
    {"start", "metrics"},
    {"tune"},
    {"law"},
    {"lightning"},
    {"run", "__main__", "sklearn"},
    {"contrib"},
]  # fmt: skip
# Classes that users drive: what they call stands in one place, and is not spread over mixins to keep the class short
DRIVEN = {"Sampler"}
MAY_IMPORT = {"engine": set(), "posterior": {"engine"}, "models": set(), "data": set()}


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def modules() -> dict[str, Path]:
    files = {}
    for name, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            parts = [name, *path.relative_to(folder).with_suffix("").parts]
            files[".".join(parts).removesuffix(".__init__")] = path
    return files


def imports(path: Path, known: set[str]) -> set[str]:
    """Modules of the project that a file imports, inside functions and under TYPE_CHECKING too."""
    used: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            used |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return used & known


@pytest.fixture(scope="module")
def arrows() -> dict[str, set[str]]:
    files = modules()
    return {name: imports(path, set(files)) - {name} for name, path in files.items()}


def reachable(arrows: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(arrows[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += arrows[name]
    return seen


def test_no_files_import_each_other_in_a_circle(arrows):
    # `import bdl` is lazy: its __init__ imports nothing, so that it is no part of a circle
    assert {name for name in arrows if name in reachable(arrows, name)} == set()


def test_imports_run_down_the_layers(arrows):
    def layer(module: str) -> str | None:
        parts = module.split(".")
        return parts[1] if parts[0] == "bdl" and len(parts) > 1 else None

    allowed: dict[str, set[str]] = {}
    below: set[str] = set()
    for names in LAYERS:
        for name in names:
            ground = LAYERS[0]
            allowed[name] = {name} | (ground | MAY_IMPORT[name] if name in MAY_IMPORT else below | names)
        below |= names
    for module, used in arrows.items():
        if (mine := layer(module)) is not None:
            wrong = {u for u in used if layer(u) not in allowed[mine] | {None}}
            assert not wrong, f"{module} imports {sorted(wrong)}"


def test_only_the_sampler_touches_its_private_names():
    for path in modules().values():
        if path.name != "sampler.py":
            assert not re.search(r"sampler\._[a-z]", path.read_text()), path


@pytest.mark.parametrize("pattern", [r"getattr\((self\.)?_?(sampler\.)?dynamics", r"hasattr\([^)]*state"])
def test_no_dynamics_or_state_is_asked_by_name_of_an_attribute(pattern: str):
    for path in modules().values():
        assert not re.search(pattern, path.read_text()), path


def test_annotations_are_never_evaluated_at_import():
    """So an annotation may name a class of its own file, or one that is imported for the type checker alone."""
    for path in PACKAGES["bdl"].rglob("*.py"):
        body = tree(path).body
        code = [node for node in body if not isinstance(node, ast.Expr)]
        first = ast.unparse(code[0]) if code else "from __future__ import annotations"
        assert first == "from __future__ import annotations", path


def test_classes_stay_small():
    for path in modules().values():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                most = 370 if node.name in DRIVEN else 220
                assert node.end_lineno - node.lineno < most, f"{node.name} of {path}: give a part of it its own class"


def test_files_stay_small():
    scripts = list((ROOT / "scripts").rglob("*.py"))
    for path in [*modules().values(), *scripts]:
        most = 430 if any(isinstance(node, ast.ClassDef) and node.name in DRIVEN for node in tree(path).body) else 300
        assert len(path.read_text().splitlines()) <= most, path
    assert len((ROOT / "scripts" / "train.py").read_text().splitlines()) <= 30


def named_modules(path: Path) -> set[str]:
    """The modules that the first line of a test file names; `.name` lies in the package of the module before it."""
    with open(path) as f:
        first = f.readline()
    names: set[str] = set()
    package = ""
    for name in re.findall(r"`(bdl\.[\w.]+|\.[\w.]+)`", first):
        names.add(name if name.startswith("bdl") else package + name)
        package = name.rpartition(".")[0] if name.startswith("bdl") else package
    return names


def test_every_module_has_a_test_file():
    """tests/a/test_b.py is that of bdl.a.b. Others name their modules: "Tests of `bdl.a.b`, `.c` and `bdl.d.e`."."""
    tests = ROOT / "tests"
    files = {name: path for name, path in modules().items() if name.startswith("bdl.") and path.stem != "__init__"}
    tested = {name for path in tests.rglob("test_*.py") for name in named_modules(path)}
    assert tested - set(files) == set(), "first lines of test files name modules that are not there"
    mirrors = {name: tests.joinpath(*name.split(".")[1:-1], f"test_{name.split('.')[-1]}.py") for name in files}
    missing = {name for name, mirror in mirrors.items() if name not in tested and not mirror.exists()}
    assert not missing, f'write "Tests of `{min(missing)}`" into the first line of the file that tests it: {missing}'


def test_page_on_architecture_names_every_file_of_large_folders():
    page = (ROOT / "docs" / "architecture.md").read_text()
    named, files = set(re.findall(r"`(\w+\.py)`", page)), {path.name for path in modules().values()}
    assert named - files == set(), "docs/architecture.md names files that are not there"
    for folder in (".", "run", "posterior", "samplers"):
        here = {path.name for path in (PACKAGES["bdl"] / folder).glob("[!_]*.py")}
        assert here - named == set(), f"docs/architecture.md, the files of {folder}/: add a row or a name"


def test_the_page_on_architecture_has_a_row_for_every_package():
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = set(re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE))
    assert {path.parent.name for path in PACKAGES["bdl"].glob("*/__init__.py")} == rows - {
        "weighting",
        "dynamics",
        "compiled",
        "priors",
    }


def test_no_two_classes_share_a_name():
    """A class name has one meaning in bdl, so that a reader who meets it knows which one it is."""
    places: dict[str, list[str]] = {}
    for module, path in modules().items():
        if module.startswith("bdl."):
            for node in ast.walk(tree(path)):
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(module)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_a_module_says_by_its_name_what_it_holds():
    says_nothing = {
        "own", "known", "ended", "stranger", "derived", "from_data", "described", "part", "understood", "forwarded",
        "found", "other", "left", "utils", "helpers", "misc", "common",
    }  # fmt: skip
    assert [module for module in modules() if module.rpartition(".")[2] in says_nothing] == []
