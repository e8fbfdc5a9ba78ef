from __future__ import annotations

import runpy
import sys

import pytest
from hydra.core.global_hydra import GlobalHydra
from running import SCRIPTS, TINY, sampled, whole


@pytest.fixture(autouse=True)
def no_hydra_left_over():
    yield
    GlobalHydra.instance().clear()


@pytest.fixture
def script(monkeypatch, capsys):
    """Runs a script as its command line would, in this process: (exit status, stdout, lines on stderr)."""

    def run(name: str, *overrides: str) -> tuple[int, str, list[str]]:
        monkeypatch.setattr(sys, "argv", [str(SCRIPTS / f"{name}.py"), *overrides])
        capsys.readouterr()
        status = 0
        try:
            runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
        except SystemExit as error:
            status = error.code
        out, err = capsys.readouterr()
        return status, out, [line for line in err.splitlines() if line.strip()]

    return run


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A finished default run in small."""
    folder = tmp_path_factory.mktemp("run") / "a"
    whole(folder)
    return folder


@pytest.fixture(scope="session")
def weighted(tmp_path_factory):
    """The same with adaptive weighting."""
    folder = tmp_path_factory.mktemp("weighted") / "a"
    whole(folder, "sampler=awsghmc")
    return folder


@pytest.fixture(scope="session")
def second(tmp_path_factory):
    folder = tmp_path_factory.mktemp("second") / "b"
    sampled(folder, "trainer=debug", *TINY, "seed=1")
    return folder
