"""Tests of `bdl.run.stored` and `.public`.

A stranger's config.yaml builds public parts of bdl, torch.nn and Lightning, and nothing else.
"""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from bdl.errors import ConfigError
from bdl.run.config import config_folder
from bdl.run.public import PUBLIC, by_import, by_text, is_public
from bdl.run.stored import check_names

RUN = Path("outputs/a")
ATTACKS = [
    "torch.load", "torch.hub.load", "shutil.copy", "builtins.open", "os.system", "subprocess.Popen", "eval", "",
    "bdl.disk.files.write_atomically", "bdl.disk.files.os.remove", "bdl.run.launch.launch",
    "bdl.native.subprocess.run",
    "bdl.data.cifar.pickle.loads", "bdl.import_module", "bdl.errors.BdlError", "bdl.models.import_module",
    "bdl.schedules.math.sqrt", "bdl.likelihoods.torch.load", "bdl.data.import_module", "bdl.__getattr__",
    "torch.nn.init.torch.load", "torch.nn.modules.module.torch.load", "torch.nn.Module.load_state_dict",
    "torch.nn.functional", "torch.nn.Parameter", "torch.nn.factory_kwargs", "torch.nnx.Linear",
    "lightning.LightningModule.load_from_checkpoint", "lightning.fabric.utilities.cloud_io._load", "lightning.pytorch",
    "mypackage_evil.Net",
]  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_a_name_that_could_do_anything_is_refused_by_its_key(name):
    config = OmegaConf.create({"model": {"net": [{"_target_": "bdl.models.MLP"}, {"_target_": name}]}})
    words = f"outputs/a/config.yaml: model.net.1._target_={name} is no public name of bdl, torch.nn or lightning"
    with pytest.raises(ConfigError, match=re.escape(words)) as refused:
        check_names(config, RUN, ["mypackage"])
    # a line that is ready to copy is printed for packages alone, not for what runs commands and reads files
    assert ("trust=[" in str(refused.value)) == name.startswith("mypackage")


@pytest.mark.parametrize("value", ["${oc.create:{_target_:torch.load}}", "${oc.env:HOME}", "${other}"])
def test_an_interpolation_could_stand_for_anything(value):
    config = OmegaConf.create({"model": value, "other": 1})
    with pytest.raises(ConfigError, match="config.yaml: model=.* is an interpolation, which no run records"):
        check_names(config, RUN)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """mypackage.nets defines Net and imports torch; mypackage.broken cannot be imported."""
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "__init__.py").write_text("")
    (tmp_path / "mypackage" / "nets.py").write_text("import torch\nclass Net(torch.nn.Module):\n    pass\n")
    (tmp_path / "mypackage" / "broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "mypackage"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("trust", ["mypackage", ["torch", "mypackage"], ["mypackage.nets"]])
def test_packages_that_the_user_trusts_are_allowed(trust):
    check_names(OmegaConf.create({"model": {"_target_": "mypackage.nets.Net"}}), RUN, trust)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", ["mypackage.nets.torch.load", "mypackage.nets.torch.hub", "mypackage.nets.torch"])
def test_a_trusted_package_does_not_vouch_for_its_imports(name):
    config = OmegaConf.create({"model": {"_target_": name}})
    with pytest.raises(ConfigError, match=f"{name} is no public name .* but a tool of torch"):
        check_names(config, RUN, ["mypackage"])
    check_names(config, RUN, ["mypackage", "torch"])


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "words"), [("mypackage.nets.Nett", "does not exist here"), ("mypackage.broken.Net", "cannot be imported")]
)
def test_a_name_that_cannot_be_found_is_one_line(name, words):
    with pytest.raises(ConfigError, match=f"{name} {words}"):
        check_names(OmegaConf.create({"model": {"_target_": name}}), RUN, ["mypackage"])


def test_every_name_that_the_configurations_use_is_public():
    """Loss functions and layers of torch.nn too, which are set on the command line."""
    found = {
        name for path in config_folder().rglob("*.yaml") for name in re.findall(r"_target_: ([\w.]+)", path.read_text())
    }
    found -= {"null", "bdl.run.jobs.NoteSweep"}  # Hydra makes its callbacks: no config.yaml of a run has them
    names = found | {"torch.nn.CrossEntropyLoss", "torch.nn.Linear", "bdl.likelihoods.with_constant_scale"}
    assert len(names) > 50 and [name for name in sorted(names) if not is_public(name)] == []


def test_the_text_of_bdl_tells_of_each_public_name_what_its_import_tells():
    names = [
        (package, name) for package in PUBLIC if package != "bdl.callbacks" for name in dir(import_module(package))
    ]
    told = {name: found for name in names if not name[1].startswith("_") and (found := by_text(*name)) is not None}
    assert len(told) > 80 and ("bdl.data", "read_table") in told
    assert {name: by_import(*name) for name in told} == told


def test_names_are_public_without_an_import_of_what_defines_them():
    names = ["bdl.data.read_table", "bdl.AdamWStart", "bdl.models.MLP", "bdl.MCLMC", "lightning.Trainer"]
    code = f"""
import sys
from bdl.run.public import is_public
print([is_public(name) for name in {names}], is_public("bdl.data.os"), is_public("bdl.nothing"))
print([name for name in ("lightning", "matplotlib", "pandas", "bdl.data.table") if name in sys.modules])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [f"{[True] * 5} False False", "[]"]
