"""Tests of `bdl.run.sampler_settings`: the arguments of a sampler, before there is one."""

import inspect

import torch

import bdl
from bdl.identity import identity
from bdl.run.sampler_settings import SamplerSettings
from bdl.run.section import Section


def test_the_settings_are_the_arguments_of_the_sampler_with_its_defaults():
    arguments = inspect.signature(bdl.Sampler).parameters
    defaults = {
        n: p.default for n, p in arguments.items() if n not in ("params", "chains") and p.default is not p.empty
    }
    settings = {**vars(SamplerSettings(dynamics=bdl.SGLD(), num_data=1, lr=1.0))}
    assert (settings.pop("kind"), settings.pop("more")) == (bdl.Sampler, {})
    assert settings.keys() == {*defaults, "dynamics", "num_data", "lr"} == arguments.keys() - {"params", "chains"}
    assert {name: identity(settings[name]) for name in defaults} == identity(defaults)


def test_a_section_becomes_settings_and_these_a_sampler():
    dynamics = {"_target_": "bdl.SGHMC", "friction": 0.25}
    node = {
        "_target_": "bdl.Sampler",
        "_partial_": True,
        "dynamics": dynamics,
        "num_data": 40,
        "lr": 0.1,
        "only": ["a"],
    }
    settings = SamplerSettings.of(Section(node))
    assert (settings.dynamics.friction, settings.only, settings.num_data) == (0.25, ["a"], 40)
    a, b = (torch.nn.Parameter(torch.zeros(2, 3)) for _ in "ab")
    sampler = settings({"a": a, "b": b}.items(), 2)
    assert (sampler.chains, sampler.num_data, len(sampler.sampled)) == (2, 40, 1) and not b.requires_grad


class Named(bdl.Sampler):
    """A subclass with an argument of its own."""

    def __init__(self, params, name: str, **settings):
        super().__init__(params, **settings)
        self.name = name


def test_a_subclass_of_the_sampler_gets_its_own_arguments():
    node = {"_target_": f"{__name__}.Named", "_partial_": True, "name": "mine", "num_data": 40, "lr": 0.1}
    sampler = SamplerSettings.of(Section({**node, "dynamics": {"_target_": "bdl.SGLD"}}))(
        [torch.nn.Parameter(torch.zeros(2))]
    )
    assert type(sampler).__name__ == "Named" and (sampler.name, sampler.num_data) == ("mine", 40)
