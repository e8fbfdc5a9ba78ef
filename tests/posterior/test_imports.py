"""What the files of bdl.posterior import. Imports under TYPE_CHECKING count as imports."""

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

import bdl

PACKAGE = Path(bdl.__file__).parent


def imported(nodes: Iterable[ast.AST]) -> set[str]:
    """Names of the imported modules; `from a import b` counts as a and as a.b."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """The files of bdl.posterior by the names of their modules."""
    return {
        ".".join(("bdl", *path.relative_to(PACKAGE).with_suffix("").parts)): ast.parse(path.read_text())
        for path in (PACKAGE / "posterior").rglob("*.py")
        if path.name != "__init__.py"
    }


def test_loading_and_predicting_import_no_heavy_tool(trees):
    imports = {name: imported(ast.walk(tree)) for name, tree in trees.items()}

    def reachable(name: str) -> set[str]:
        """The files that this one imports, directly or through others, and itself."""
        return {name}.union(*(reachable(n) for n in imports[name] & imports.keys()))

    for name in reachable("bdl.posterior.predict"):
        tools = {n.partition(".")[0] for n in imported(trees[name].body)}
        assert not tools & {"matplotlib", "torchmetrics", "arviz_base", "arviz_stats", "rich", "jinja2"}, name


def has_matplotlib(tree: ast.AST) -> bool:
    return any(name.partition(".")[0] == "matplotlib" for name in imported(ast.walk(tree)))


def test_matplotlib_is_imported_where_pictures_are_drawn(trees):
    users = {name for name, tree in trees.items() if has_matplotlib(tree)}
    plot, report = "bdl.posterior.plot", "bdl.posterior.report"
    drawing = {f"{plot}.{name}" for name in ("axes", "chains", "predictions")}
    assert users == drawing | {f"{report}.{name}" for name in ("figures", "zoom")}
    users.add(plot)  # `import bdl` finds it where it is first used
    others = [tree for name, tree in trees.items() if name not in users]
    assert not any(user in imported(tree.body) for user in users for tree in others)
