"""Tests of `bdl.run.config` and `bdl.cpu`.

What null and auto stand for: it follows from the configuration, and the precision from the CPU too.
"""

import json
import os
from pathlib import Path

import pytest
import torch
from composing import compose

from bdl.cpu import cpu
from bdl.run import config
from bdl.run.config import (
    choose_precision,
    config_hash,
    count_carriers,
    count_stacks,
    cpu_flags,
    run_settings,
    usable_cores,
)  # fmt: skip

ONE_STACK = {
    "odd": "chains=7",
    "few": "chains=2",
    "one": "chains=1",
    "shared batches": "shared_batches=true",
    "shared psi": "sampler=awsghmc sampler.weighting.shared=true",
    "exchange": "sampler=resghmc",
    "network": "model=cnn",
    "wide": "model.sizes=[36,1000,1000,6]",
    "no sizes": "model.sizes=[36,many,6]",
    "several devices": "trainer=chains",
    "one chain on several": "trainer=ddp",
    "gpu": "trainer=gpu",
    "by hand": "stacks=1",
}


def cores(monkeypatch, count: int) -> None:
    monkeypatch.setattr(config, "usable_cores", lambda: count)


@pytest.mark.parametrize("override", ONE_STACK.values(), ids=ONE_STACK)
def test_one_stack_where_chains_belong_together_or_gain_nothing(override):
    assert count_stacks(compose("run_dir=x", *override.split())) == 1


@pytest.mark.parametrize("override", ["chains=8", "chains=4", "chains=24", "trainer=debug", "sampler=hmc", "threads=2"])
def test_two_stacks_for_several_chains_of_a_small_network_on_cpu(override):
    assert count_stacks(compose("run_dir=x", override)) == 2


@pytest.mark.parametrize("count", [1, 2, 64])
def test_the_machine_has_no_say_in_the_stacks(monkeypatch, count):
    before = [count_stacks(compose("run_dir=x", f"chains={c}")) for c in (2, 8, 9)]
    cores(monkeypatch, count)
    assert before == [count_stacks(compose("run_dir=x", f"chains={c}")) for c in (2, 8, 9)] == [1, 2, 1]


CARRIERS = [  # cores, overrides, processes
    (1, (), 1), (2, (), 2), (64, (), 2), (64, ("stacks=8",), 8), (3, ("stacks=8",), 3), (64, ("stacks=1",), 1),
    (8, ("stacks=8", "threads=2"), 4), (4, ("threads=8",), 1), (4, ("threads=null",), 2),
    (64, ("stacks=8", "processes=3"), 3), (1, ("processes=2",), 2), (64, ("processes=9",), 2),
]  # fmt: skip


@pytest.mark.parametrize(("count", "overrides", "processes"), CARRIERS)
def test_processes_are_at_most_as_many_as_cores_and_as_stacks(monkeypatch, count, overrides, processes):
    cores(monkeypatch, count)
    assert count_carriers(compose("run_dir=x", *overrides)) == processes


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_cores_are_those_that_the_process_may_use():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert usable_cores() == len(allowed)


IMAGES = ("data=cifar10", "model=resnet20", "chains=1")
PRECISIONS = [  # flags, overrides, precision
    ("avx2 fma", IMAGES, "32-true"),
    ("avx512f avx512_bf16", IMAGES, "bf16-mixed"),
    ("amx_tile amx_bf16", IMAGES, "bf16-mixed"),
    ("amx_tile avx512f", IMAGES, "32-true"),
    ("avx512_bf16", (*IMAGES, "model=wrn16_4"), "bf16-mixed"),
    ("avx512_bf16", (*IMAGES, "model=cnn"), "bf16-mixed"),
    ("avx512_bf16", (*IMAGES, "trainer=debug"), "bf16-mixed"),
    ("avx512_bf16", (), "32-true"),
    ("avx512_bf16", (*IMAGES, "trainer=chains"), "32-true"),
    ("avx512_bf16", (*IMAGES, "trainer=ddp"), "32-true"),
    ("avx512_bf16", (*IMAGES, "trainer.precision=32-true"), "32-true"),
    ("avx2", (*IMAGES, "trainer.precision=bf16-mixed"), "bf16-mixed"),
    ("avx2", (*IMAGES, "trainer=gpu"), "bf16-mixed"),
    ("avx512_bf16", ("trainer=gpu",), "32-true"),
]  # fmt: skip


def features(monkeypatch, flags: str) -> None:
    monkeypatch.setattr(config, "cpu_flags", lambda: set(flags.split()))


@pytest.mark.parametrize(("flags", "overrides", "precision"), PRECISIONS)
def test_bf16_is_the_default_of_convolutions_where_cpu_has_it(monkeypatch, flags, overrides, precision):
    features(monkeypatch, flags)
    cfg = compose("run_dir=x", *overrides)
    assert choose_precision(cfg) == run_settings(cfg)["trainer"]["precision"] == precision


def test_the_precision_is_part_of_what_names_a_run(monkeypatch):
    """A run that began in bf16 is not continued in fp32, on another CPU say."""
    features(monkeypatch, "avx2")
    plain, by_hand = (
        config_hash(compose("run_dir=x", *IMAGES)),
        compose("run_dir=x", *IMAGES, "trainer.precision=32-true"),
    )
    assert plain == config_hash(by_hand)
    features(monkeypatch, "avx512_bf16")
    assert config_hash(compose("run_dir=x", *IMAGES)) != plain == config_hash(by_hand)


def test_the_first_cpu_of_the_list(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("vendor_id\t: A\nvmx flags\t: ept\nflags\t\t: fpu avx512_bf16\nbugs\t\t: x\n\nflags\t\t: later\n")
    assert cpu(path) == {"vendor_id": "A", "vmx flags": "ept", "flags": "fpu avx512_bf16", "bugs": "x"}
    assert cpu(tmp_path / "none") == {}


@pytest.mark.skipif(
    not Path("/proc/cpuinfo").exists() or not hasattr(torch.cpu, "_is_avx512_bf16_supported"), reason="-"
)
def test_the_flags_are_those_that_torch_sees():
    assert ("avx512_bf16" in cpu_flags()) == torch.cpu._is_avx512_bf16_supported()


def test_settings_are_plain_values():
    settings = run_settings(compose("run_dir=x"))
    assert settings["stacks"] == 2 and "processes" not in settings and json.dumps(settings)
    assert "processes" in config.NO_EFFECT_ON_SAMPLES
