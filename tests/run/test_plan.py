"""Tests of `bdl.run.plan`, `.stack_plan` and `.section`.

What a configuration decides once, and what the data add: the parts that the rest of a run takes.
"""

import dataclasses

import pytest
import torch
from omegaconf import OmegaConf
from running import planned

import bdl
from bdl.data import TensorDataModule
from bdl.errors import ConfigError
from bdl.run.processes import SINGLE
from bdl.run.section import Section, complete_model
from bdl.run.write_report import facts_of


def test_chains_are_divided_once(tmp_path):
    plan = planned(f"run_dir={tmp_path}", "chains=8", "stacks=4", "stack=3")
    assert (plan.stacks.count, plan.stacks.chains) == (4, 2)
    assert list(plan.numbers(SINGLE)) == [3, 4, 5, 6]
    stacks = [plan.of_stack(n, plan.data(n).build()) for n in plan.numbers(SINGLE)]
    assert [stack.keeping.checkpoint for stack in stacks] == ["last", "last-4", "last-5", "last-6"]


def test_the_data_complete_a_stack(tmp_path):
    """N, the steps, the likelihood and the ends of the network are those of the data, and keys that follow them."""
    plan = planned(f"run_dir={tmp_path}", "chains=4", "stacks=2", "length=1000")
    stack = plan.of_stack(1, plan.data(1).build())
    assert stack.motion.sampler.num_data == 4435 and stack.motion.steps == 1000
    assert stack.keeping.rule.get("burn_in") == 120
    assert stack.target.model.get("sizes")[0] == 36 and stack.target.model.get("sizes")[-1] == 6
    assert isinstance(stack.target.loss.build(), bdl.CategoricalNLL)
    assert stack.settings["sampler"]["num_data"] == 4435


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loss=normal", "is a likelihood of numbers, and the task is classification"),
        ("sampler.num_data=7", "sampler.num_data = 7, but the training data have 4435 items"),
    ],
)
def test_what_does_not_fit_the_data_is_refused(tmp_path, override, message):
    plan = planned(f"run_dir={tmp_path}", override)
    with pytest.raises(ConfigError, match=message):
        plan.of_stack(0, plan.data(0).build())


@pytest.mark.parametrize(("classes", "hidden"), [(2, [16] * 3), (11, [32] * 2)])
def test_rows_inputs_and_classes_decide_the_hidden_layers(classes, hidden):
    x, y = torch.zeros(44, 5), torch.arange(44) % classes
    data = TensorDataModule({"train": (x, y), "test": (x, y)})
    model = complete_model(
        {"_target_": "bdl.models.MLP", "hidden": "auto", "sizes": None}, data, bdl.CategoricalNLL(), "input"
    )
    assert model.node["sizes"] == [5, *hidden, classes]


def test_what_tuning_found_completes_plan_and_leaves_its_folder(tmp_path):
    plan = planned(f"run_dir={tmp_path}")
    found = {"settings": {"sampler.lr": 0.125}, "reasons": [], "seconds": 1.0}
    tuned = planned(f"run_dir={tmp_path}", found=found)
    stack = tuned.of_stack(0, tuned.data(0).build())
    assert stack.motion.sampler.lr == 0.125 and (tuned.hash, tuned.folder) == (plan.hash, plan.folder)
    assert stack.settings["sampler"]["lr"] == 0.125


def test_a_plan_cannot_be_changed(tmp_path):
    plan = planned(f"run_dir={tmp_path}")
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.found = {}


def test_a_section_builds_what_it_names():
    config = OmegaConf.create({"prior": {"_target_": "bdl.Gaussian", "precision": "${number}"}, "number": 2.0})
    section: Section[bdl.Gaussian] = Section.of(config.prior)
    assert section.build().precision == 2.0 and section.having(precision=3.0).build().precision == 3.0
    assert section.target == "bdl.Gaussian" and section.get("mean") is None
    assert Section.optional(None) is None and Section.optional(OmegaConf.create({"_target_": None})) is None


def test_facts_name_the_run_and_its_stacks(tmp_path):
    plan = planned(f"run_dir={tmp_path}", "seed=5", "chains=8", "stacks=2")
    data = plan.data(0).build()
    assert isinstance(data, TensorDataModule)
    facts = facts_of(plan, data, SINGLE)
    assert facts["title"].endswith("seed 5") and facts["N"] == "4,435" and facts["stacks"] == "2 of 4 chains"
    assert facts["devices"] == "1" and facts["batch"] == "4435"
