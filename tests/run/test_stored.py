"""Whether a stored config.yaml describes the samples beside it."""

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import pytest
from manifests import rewrite
from omegaconf import OmegaConf

from bdl.disk.manifest import Entry, manifests_of
from bdl.errors import ConfigError
from bdl.posterior.store import SampleStore
from bdl.run.stored import load_runs, target_difference

TARGET = {
    "num_data": 40, "model": {"_target_": "bdl.models.MLP", "sizes": [3, 3], "activation": "tanh"},
    "data": {"_target_": "bdl.data.LandsatDataModule", "encoding": "abc"}, "loss": {"type": "bdl.CategoricalNLL"},
}  # fmt: skip
CONFIG = {
    "model": TARGET["model"], "data": {"_target_": "bdl.data.LandsatDataModule", "batch_size": 10},
    "loss": {"_target_": "bdl.CategoricalNLL"}, "sampler": {"num_data": 40}, "seed": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"seed": 1}, None),  # not part of the law
        ({"data": {**CONFIG["data"], "root": "elsewhere"}}, None),
        (
            {"model": {**TARGET["model"], "activation": "relu"}},
            'model.activation is "relu", and "tanh" in samples/target',
        ),
        ({"model": {**TARGET["model"], "sizes": [3, 5, 3]}}, "model.sizes is [3, 5, 3], and [3, 3] in samples"),
        ({"data": {"_target_": "bdl.data.CIFARDataModule"}}, "data._target_ is"),
        ({"loss": {"_target_": "bdl.PoissonNLL"}}, 'loss.type is "bdl.PoissonNLL"'),
        ({"sampler": {"num_data": 41}}, "num_data is 41, and 40 in samples/target.json"),
    ],
)
def test_configuration_that_does_not_describe_samples_is_noticed(tmp_path, change, words):
    SampleStore(tmp_path).write_target(TARGET)
    difference = target_difference(tmp_path, OmegaConf.create({**CONFIG, **change}))
    assert difference is None if words is None else words in str(difference), difference


def test_what_the_target_does_not_name_is_not_compared(tmp_path):
    SampleStore(tmp_path).write_target({"num_data": 40})
    assert target_difference(tmp_path, OmegaConf.create(CONFIG)) is None
    other = OmegaConf.create({**CONFIG, "sampler": {"num_data": 41}})
    assert "num_data is 41" in str(target_difference(tmp_path, other))


@pytest.mark.parametrize(
    "loss", [None, "bdl.CategoricalNLL", {"_target_": None}, {"_target_": "bdl.CategoricalNLL", "classes": 3}], ids=repr
)
def test_a_loss_that_cannot_be_built_is_a_damage_in_one_line(tmp_path, loss):
    """As where config.yaml is cut within its section."""
    SampleStore(tmp_path).write_target(TARGET)
    with pytest.raises(ConfigError, match=r"^[^\n]*config\.yaml is damaged \(its loss cannot be built: [^\n]*$"):
        target_difference(tmp_path, OmegaConf.create({**CONFIG, "loss": loss}))


def signed(entry: Entry, run: Path) -> Entry:
    """The line of a file as it is now."""
    if entry.path not in ("config.yaml", "samples/target.json"):
        return entry
    data = (run / entry.path).read_bytes()
    return dataclasses.replace(entry, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize(
    "model",
    [{"_target_": "bdl.models.MLP", "sizes": [36, 200_000, 200_000, 6], "activation": "tanh", "dropout": 0.0},
     {"_target_": "torch.nn.Linear", "in_features": 200_000, "out_features": 200_000}],
    ids=["bdl", "torch"],
)  # fmt: skip
@pytest.mark.parametrize("only", [None, ["*"]])
@pytest.mark.filterwarnings("ignore:.*knows samples that no manifest lists")
def test_a_network_that_no_file_of_samples_holds_is_refused_before_it_takes_memory(weighted, tmp_path, model, only):
    """A stranger may sign anew what he has altered: 40 thousand million numbers, which are counted and not made."""
    run = shutil.copytree(weighted, tmp_path / "run")
    config = OmegaConf.load(run / "config.yaml")
    config.model, config.sampler.only = model, only
    OmegaConf.save(config, run / "config.yaml")
    target = json.loads((run / "samples" / "target.json").read_text())
    target["model"] = model
    (run / "samples" / "target.json").write_text(json.dumps(target))
    for manifest in manifests_of(run):
        rewrite(manifest, [signed(entry, run) for entry in manifest.entries()])
    with pytest.raises(ConfigError, match=r"describes a network of 40,00[0-9,]+ numbers.*altered \(model\)"):
        load_runs([run], (), "cpu")
