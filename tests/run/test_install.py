"""Tests of `bdl.__main__` and `.run.command`.

An installed bdl is complete, and its commands answer before they import torch.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import setuptools
from composing import ROOT
from omegaconf import OmegaConf

COMMANDS = {"command": ("-m", "bdl", "train"), "script": (str(ROOT / "scripts" / "train.py"),)}


def test_every_package_is_in_the_wheel():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(setuptools.find_packages(str(ROOT), include=["bdl*"]))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_imports_no_training_code(tmp_path, command):
    """The modules that --help imports, as Python itself lists them; `import bdl` is free to import what it needs."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(lazy_bdl(tmp_path)), *sys.path])}
    help = (sys.executable, "-X", "importtime", *COMMANDS[command], "--help")
    done = subprocess.run(help, capture_output=True, text=True, cwd=tmp_path, env=environment, check=True)
    assert "awpsgld, awsghmc" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time")}
    assert "hydra" in imported
    assert not imported & {"torch", "lightning", "lightning.pytorch", "torchvision", "matplotlib", "wandb"}


def lazy_bdl(folder: Path) -> Path:
    """A folder with a bdl whose __init__ imports nothing, so that the test sees the imports of the command alone."""
    shutil.copytree(ROOT / "bdl", folder / "lazy" / "bdl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "conf", folder / "lazy" / "conf")
    (folder / "lazy" / "bdl" / "__init__.py").write_text("")
    return folder / "lazy"


def test_the_command_lists_its_commands(capsys, monkeypatch):
    from bdl.run import command

    monkeypatch.setattr(sys, "argv", ["bdl", "--help"])
    command.main()
    assert "bdl COMMAND" in (out := capsys.readouterr().out) and "  train" in out and "  evaluate" in out
    monkeypatch.setattr(sys, "argv", ["bdl", "sample"])
    with pytest.raises(SystemExit) as error:
        command.main()
    assert error.value.code == 2 and "sample is not a command" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["bdl", "evalute"])
    with pytest.raises(SystemExit):
        command.main()
    assert "evalute is not a command (did you mean evaluate?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["evaluate", "predict", "verify", "compare", "llc", "influence", "distil", "calibrate"]
)
def test_the_help_of_a_command_explains_each_of_its_keys(name, capsys, monkeypatch):
    from bdl.run import command

    monkeypatch.setattr(sys, "argv", [f"bdl {name}", "--help"])
    command.run_command(name)
    shown = capsys.readouterr().out
    keys = OmegaConf.load(ROOT / "conf" / f"{name}.yaml").keys() - {"defaults", "hydra"}
    assert keys and all(f"\n{key}: " in shown for key in keys)
    assert f"    bdl {name} " in shown and command.OF_FOLDERS[name] in keys
    assert "sampler" not in shown and "hydra" not in shown


@pytest.mark.slow
def test_a_wheel_samples_in_an_empty_folder(tmp_path):
    """The wheel is built from a copy of the sources, installed without the checkout on the path, and run."""
    source, wheels, site, work = (tmp_path / name for name in ("source", "wheels", "site", "work"))
    source.mkdir(), work.mkdir()
    for name in ("bdl", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    (source / "scripts" / "tools").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "scripts/tools/packaging_step.py"):
        shutil.copy(ROOT / name, source / name)
    pip = (sys.executable, "-m", "pip", "-q")
    build = ("wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(source))
    subprocess.run([*pip, *build], check=True, cwd=tmp_path)
    (wheel,) = wheels.glob("bdl-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True, cwd=tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(site)}

    def bdl(*arguments: str) -> str:
        command = [sys.executable, str(site / "bin" / "bdl"), *arguments]
        return subprocess.run(command, check=True, cwd=work, env=environment, capture_output=True, text=True).stdout

    where = [sys.executable, "-c", "import bdl.run.config as c; print(c.config_folder())"]
    folder = subprocess.run(where, check=True, cwd=work, env=environment, capture_output=True, text=True).stdout
    assert folder.strip() == str(site / "bdl" / "conf")
    assert (site / "bdl" / "engine" / "mlp_kernel.c").is_file()
    assert "all chains' average" in bdl("train", "trainer=debug", "chains=2")
    (run,) = (work / "outputs" / "landsat-mlp-langevin").iterdir()
    assert json.loads((run / "metrics.json").read_text())["chains"] == 2
    assert "2 chains" in bdl("evaluate", f"runs={run}", f"out={work / 'out'}")


@pytest.mark.slow
def test_an_editable_install_is_a_path_that_editors_follow(tmp_path):
    """An import hook would do for Python, but no type checker runs it. The wheel of an editable install shows which."""
    source, wheels = tmp_path / "source", tmp_path / "wheels"
    source.mkdir(), wheels.mkdir(), (source / "scripts" / "tools").mkdir(parents=True)
    for name in ("bdl", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "scripts/tools/packaging_step.py"):
        shutil.copy(ROOT / name, source / name)
    build = f"import setuptools.build_meta as b; print(b.build_editable({str(wheels)!r}))"
    subprocess.run([sys.executable, "-c", build], check=True, cwd=source, capture_output=True)
    (wheel,) = wheels.glob("bdl-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert len(names) == 1 and names[0].endswith(".pth")
        assert archive.read(names[0]).decode().strip() == str(source)
