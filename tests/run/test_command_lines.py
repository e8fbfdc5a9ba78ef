"""Tests of `bdl.run.keys` and `.console`.

Bad command lines: each is refused in one line that names the key, and nothing is left behind.
"""

import functools
import pickle

import pytest
from composing import CONF, compose
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from repeats import slow_where
from running import refusal

from bdl.run import train
from bdl.run.console import one_line
from bdl.run.keys import check_keys
from bdl.run.validate import check_config

# Groups, then for each key the values that it must not have, separated by spaces. A space at the end: no value.
WRONG: dict[str, dict[str, str]] = {
    "": {
        "seed": "-1 1.5 abc null true [1] nan inf 99999999999999999999 ",
        "stack": "-1 .5 a null true nan 99999999",
        "chains": "0 -1 2.5 two null true [1,2] nan inf 100000000 ",
        "stacks": "0 -2 1.5 many true nan 3 100000000",
        "processes": "0 -1 1.5 all true nan 100000",
        "threads": "0 -1 1.5 all true nan 100000 ",
        "shared_batches": "0 1 0.5 maybe null ",
        "tf32": "1 maybe null",
        "compile": "1 maybe null ",
        "length": "0 -1 -3 60.7 long null true nan inf 1e30 ",
        "steps": "10 0 -1 1.5 many null",
        "run_dir": "5 [a] null ",
        "checkpoint_every": "0 -1 1.5 often null true nan",
        "monitor_every": "0 -1 1.5 often null true nan",
        "train_items": "0 -1 1.5 some true nan",
        "tune": "true 1 maybe null",
        "budget": "5 true [1] abc 10 0s",
        "found": "5",
        "objective": "3 true [a] ",
        "collect.keep.every": "0 -1 1.5 often null true nan",
        "collect.keep.burn_in": "-1 1.5 long null true nan",
        "collect.keep.samples_per_cycle": "1.5 many null true",
        "collect.full_energy": "1 maybe null",
        "collect.freeze_weighting": "1 maybe null",
        "collect.batchnorm": "1 true null",
        "data.batch_size": "all 1.5 true nan [1]",
        "data.val_fraction": "half true null nan inf",
        "data.fold": "1.5 first null true",
        "data.split_seed": "-1 1.5 abc null true 99999999999999999999",
        "data.seed": "abc 1.5 null true -3",
        "data.stack": "abc 1.5 -3",
        "data.chains": "two 1.5 5",
        "data.replacement": "1 maybe null",
        "model.hidden": "30 [0] [-1] [1.5] [many] [30,0] [1000000000] null",
        "model.sizes": "36 [] [36] [36,0,6] [36,-1,6] [36,1.5,6] [36,many,6] [36,null,6] [36,1000000000,6] ",
        "model.activation": "3 null",
        "model.dropout": "1 -0.1 2 high null true nan inf",
        "sampler.lr": "0 -0.1 small null true nan inf -inf [1] ",
        "sampler.temperature": "-1 hot null true nan inf [1] ",
        "sampler.num_data": "0 -1 1.5 all true nan",
        "sampler.seed": "abc 1.5 -7",
        "sampler.stack": "-5 3 1.5",
        "sampler.clip": "5 hard true",
        "sampler.dynamics": "sgld 3",
        "sampler.dynamics.friction": "0 -0.1 1.5 high null true nan inf ",
        "sampler.dynamics.grad_var": "-1 known true nan inf",
        "sampler.dynamics.mass": "1 heavy null",
        "sampler.dynamics.mass_steps": "1.5 many true -1",
        "sampler.prior.precision": "-1 she true nan inf null []",
        "schedule.lr.value": "-1 low null true nan inf",
        "schedule.temperature.value": "-1 low nan",
        "schedule.lr": "5 constant",
        "schedule.zeta": "5 ramp",
        "tuned.precision": "-1 nan",
        "trainer.max_steps": "0 -2 1.5 many null true nan 1e30",
        "trainer.max_epochs": "0 -2 0.5 many null",
        "trainer.precision": "16-mixed 16-true bf16-true 8 null ",
        "trainer.deterministic": "maybe 1",
        "trainer.accumulate_grad_batches": "0 -1 1.5 many true null",
        "trainer.gradient_clip_val": "0 -1 hard nan inf",
        "trainer.accelerator": "5 ",
        "+trainer.strategy": "horovod null fsdp deepspeed_stage_3 model_parallel",
        "+trainer.num_nodes": "0 -1 two",
        "+trainer.limit_train_batches": "0 0.5",
        "+trainer.callbacks": "[]",
        "+secret": "abc",
        "++secret": "abc",
        "+secret.key": "abc",
        "secret": "abc",
        "lr": "0.1",
        "sampler.lrr": "0.1",
        "+sampler.lrr": "0.1",
        "+sampler.dynamics.mometum": "0.9",
        "+sampler.prior.scale": "1",
        "+data.root": "data",
        "+model.depth": "20",
        "+schedule.momentum": "0.9",
        "+schedule.lr.final": "0.1",
        "+collect.burn_in": "3",
        "+collect.keep.samples": "3",
        "data.bach_size": "10",
        "trainer.steps": "5",
        "collect.every": "5",
    },
    "sampler=awsghmc": {
        "sampler.weighting.zeta": "-1 1e12 high null true nan inf",
        "sampler.weighting.bins": "0 1 -5 1.5 many null true 1000000000",
        "sampler.weighting.low": "5M true nan inf",
        "sampler.weighting.edges": "5 [1,3,2] [1] [a,b,c]",
        "sampler.weighting.form": "steep 1 null",
        "sampler.weighting.units": "feet 1",
        "sampler.weighting.rate.scale": "-1 large true nan inf",
        "sampler.weighting.rate.power": "-1 large nan",
        "sampler.weighting.shared": "1 perhaps",
        "sampler.weighting.target": "0 -1 cold inf nan true",
        "sampler.weighting.energy": "kinetic 1",
        "sampler.weighting.refresh": "0 -1 1.5",
        "sampler.weighting.pilot": "0 -1 1.5 long 1e30",
        "+sampler.weighting.bin": "10",
    },
    "sampler=sgd": {"sampler.dynamics.momentum": "1 -0.1 2 high nan"},
    "sampler=hmc": {
        "sampler.dynamics.leapfrog": "0 -1 2.5 2.0 many 10000000",
        "sampler.dynamics.target": "0 1 2 -1 high nan",
        "sampler.dynamics.adapt_steps": "-1 1.5 many",
        "sampler.dynamics.mass": "heavy",
    },
    "sampler=sgnht": {"sampler.dynamics.rate": "0 -1 fast nan"},
    "sampler=psgld": {
        "sampler.dynamics.a": "1 -1 high nan",
        "sampler.dynamics.damping": "0 -1 nan",
        "sampler.dynamics.adapt_steps": "0 -1 1.5",
    },
    "sampler=smile": {
        "sampler.dynamics.friction": "0 1 -1 high nan",
        "sampler.dynamics.mass": "diagonal 1",
        "sampler.dynamics.heat": "0 -1 nan",
        "sampler.dynamics.noise_share": "0 1.5 all nan",
        "sampler.dynamics.stiffness": "0 1.5 nan",
        "sampler.dynamics.adapt_steps": "-1 1.5 many",
    },
    "sampler=cchmc": {
        "sampler.dynamics.friction": "0 2 high nan",
        "sampler.dynamics.rank": "0 -1 1.5 many",
        "sampler.dynamics.adapt_steps": "-1 1.5 many",
        "sampler.dynamics.every": "0 -1 1.5",
    },
    "sampler=mclmc": {
        "sampler.dynamics.integrator": "euler 3",
        "sampler.dynamics.energy_var": "0 -1 low nan inf",
        "sampler.dynamics.length": "0 -1 long nan",
        "sampler.dynamics.adjusted": "maybe 1",
    },
    "sampler=bbb": {"sampler.dynamics.init_std": "0 -1 nan", "sampler.dynamics.kl_weights": "half 1"},
    "sampler=sgfs": {"sampler.dynamics.form": "x 1", "sampler.dynamics.b": "0 -1 nan"},
    "sampler=resghmc": {
        "sampler.exchange.ladder": "3 [] [1] [1,3,2] [2,3] [a,b]",
        "sampler.exchange.every": "0 -1 1.5",
        "sampler.exchange.energy": "kinetic 1",
        "sampler.exchange.energy_var": "-1 large nan",
        "stacks": "2",
    },
    "sampler/prior=laplace": {"sampler.prior.scale": "0 -1 wide nan"},
    "sampler/prior=student_t": {"sampler.prior.df": "0 -1 many nan", "sampler.prior.scale": "0 nan"},
    "schedule=cosine": {"schedule.lr.final": "-1 low nan"},
    "schedule=cyclical": {
        "schedule.cycle.cycles": "0 -1 1.5 many",
        "schedule.cycle.explore": "1 -0.1 2 half",
        "collect.keep.samples_per_cycle": "0 -1",
    },
    "loss=normal": {"+loss.label_smoothing": "0.1"},
    "data=cifar10 model=cnn": {
        "data.workers": "-1 1.5 2000",
        "data.augment": "strong 3",
        "data.augment.flip": "maybe 1",
        "data.root": "null 3",
        "model.num_classes": "0 -1 1.5 many",
    },
    "data=cifar10 model=resnet20": {"model.depth": "0 -1 1.5 deep", "model.norm": "3 null"},
}
ROWS = [
    (groups, key, value)
    for groups, keys in WRONG.items()
    for key, values in keys.items()
    for value in values.split(" ")
]
FIRST = {(groups, key): values.split(" ")[0] for groups, keys in WRONG.items() for key, values in keys.items()}


@functools.lru_cache
def base(groups: str) -> bytes:
    return pickle.dumps(compose("run_dir=a", *groups.split()))


def message_of(groups: str, override: str) -> str:
    """The line that train.py would print, computed without a process, without torch's work and without data."""
    cfg = pickle.loads(base(groups))
    hydra = OmegaConf.create({"overrides": {"task": [override]}, "run": {"dir": "a"}, "sweep": {"dir": "b"}})
    try:
        ConfigLoaderImpl._apply_overrides_to_config(OverridesParser.create().parse_overrides([override]), cfg)
        check_keys("train", cfg, hydra, CONF)
        check_config(cfg)
    except Exception as error:
        return one_line(error)
    return ""


def test_the_table_is_long_and_its_bases_are_right():
    assert len(ROWS) > 300 and len(set(ROWS)) == len(ROWS)
    for groups in WRONG:
        assert message_of(groups, "seed=1") == ""


@pytest.mark.parametrize(
    ("groups", "key", "value"),
    slow_where(lambda groups, key, value: value != FIRST[groups, key], ROWS),
    ids=["-".join(row).replace(" ", "-") for row in ROWS],
)
def test_a_bad_value_or_key_is_named(groups, key, value):
    message = message_of(groups, f"{key}={value}")
    section, _, name = key.lstrip("+").rpartition(".")
    assert section in message and name in message and "\n" not in message, message


PHRASES = [
    ("sampler.lr=0", "sampler.lr must be a number > 0, got 0"),
    ("sampler.temperature=-1", "sampler.temperature must be a number >= 0, got -1"),
    ("sampler.dynamics.friction=0", "friction must be in (0, 1], got 0"),
    ("chains=0", "chains must be a whole number from 1 to 100,000, got 0"),
    ("sampler=awsghmc; sampler.weighting.bins=1", "bins must be a whole number from 2 to 1,000,000, got 1"),
    ("sampler.prior.precision=-1", "precision must be >= 0, got -1"),
    ("sampler=resghmc; sampler.exchange.ladder=3", 'exchange.ladder must be a list of numbers or "auto", got 3'),
    ("sampler.prior.precision=she", "one of ['fan_in', 'he', 'rough', 'smooth', 'steep'], got 'she'"),
    ("chains=two", "chains must be a whole number from 1 to 100,000, got 'two'"),
    ("data.batch_size=all", "data.batch_size must be a whole number or null, got 'all'"),
    ("threads=0", "threads must be a whole number from 1 to 1,024 or null, got 0"),
    ("train_items=0", "train_items must be a whole number of at least 1 or null, got 0"),
    ("checkpoint_every=0", "checkpoint_every must be a whole number of at least 1, got 0"),
    ("seed=null", "seed must be a whole number from 0 to 9,223,372,036,854,775,807, got None"),
    ("compile=maybe", "compile must be \"auto\", true or false, got 'maybe'"),
    ("trainer.deterministic=maybe", "trainer.deterministic must be true, false, \"warn\" or null, got 'maybe'"),
    ("sampler.lr=small", "sampler.lr must be a number > 0, got 'small'"),
    ("sampler.dynamics.friction=high", "sampler.dynamics.friction must be a number, got 'high'"),
    ("trainer.max_steps=0", "a whole number from 1 to 1,000,000,000,000, or -1 for a run of trainer.max_epochs, got 0"),
    ("trainer.max_steps=-1", "trainer.max_epochs must be a whole number of at least 1, or trainer.max_steps"),
    ("trainer.max_steps=-1; trainer.max_epochs=0", "trainer.max_epochs must be a whole number of at least"),
    ("trainer.max_steps=-1; trainer.max_epochs=0.5", "a whole number of at least 1, or trainer.max"),
    ("trainer.precision=16-mixed", 'precision must be "auto", "32-true", "bf16-mixed" or "64-true", got'),
    ("sampler=hmc; sampler.dynamics.leapfrog=2.5", "leapfrog must be a whole number from 1 to 1,000,000, got 2.5"),
    ("sampler=hmc; sampler.dynamics.leapfrog=2.0", "leapfrog must be a whole number from 1 to 1,000,000, got 2.0"),
    ("sampler=awsghmc; sampler.weighting.shared=1", "shared must be true, false or null, got 1"),
    ("schedule=cosine; schedule.lr.final=low", "schedule.lr.final must be a number, got 'low'"),
    ("model.sizes=[36,many,6]", "a list of whole numbers from 1 to 1,000,000 or null, got [36, 'many', 6]"),
    ("sampler.dynamics=sgld", "sampler.dynamics must be built by a _target_ ("),
    ("sampler.dynamics._target_=mine.Walk", "sampler.dynamics._target_=mine.Walk cannot be imported"),
    ("objective=3", "objective must be null or the name of a metric, got 3"),
    ("loss=student_t; loss.scale=input", ""),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "phrase"), PHRASES)
def test_the_line_says_what_was_wanted(overrides, phrase):
    *groups, last = overrides.split("; ")
    assert phrase in message_of(" ".join(groups), last)


GROUPS = [
    "sampler=nuts", "data=mnist", "model=vgg", "loss=mse", "schedule=linear", "trainer=tpu", "logger=mlflow",
    "collect=all", "experiment=theirs", "budget=long", "sampler/dynamics=walk", "sampler/weighting=heavy",
    "sampler/prior=flat", "sampler/exchange=stairs",
]  # fmt: skip
WHOLE = [
    ("hydra.run.dir=", "hydra.run.dir"),
    ("hydra.sweep.dir=", "hydra.sweep.dir"),
    ("seed", "seed"),
    ("data.root=~/data", "data.root=~/data cannot be parsed: a value with ~, =, spaces or the like needs"),
    ("data.target=a b,c", "data.target=['a b',c] is a list, data.target='\"a b,c\"' one word; -m makes a run of each"),
    ("data.drop=[größe,b]", "needs quotes, data.drop=['\"größe\"',b]"),
    ("+secret=abc", "secret"),
    ("threads=100000", "threads"),
    ("steps=10", "steps"),
    ("+trainer.limit_train_batches=0", "limit_train_batches"),
    ("sampler.clip=5", "sampler.clip"),
    ("model=null", "model=null: model must be one of cnn, gpt, hf"),
    ("loss=5", "loss=5: loss must be one of auto"),
    ("data.fold=7", "data.fold must be"),
    *[(group, group.partition("=")[2]) for group in GROUPS],
]


@pytest.mark.parametrize(("override", "word"), WHOLE)
def test_a_refused_command_leaves_nothing(script, tmp_path, monkeypatch, override, word):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "start_by", lambda accelerator: "fork")  # data.fold is refused by launched processes
    assert word in refusal(script("train", override))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "override", "word"),
    [
        ("evaluate", "splits=[exam]", "splits"),
        ("evaluate", "splits=[]", "splits"),
        ("evaluate", "train_items=0", "train_items"),
        ("evaluate", "skip_bad=maybe", "skip_bad"),
        ("evaluate", "device=3", "device"),
        ("evaluate", "+sampler=sgld", "sampler"),
        ("predict", "id=name", "id"),
        ("compare", "out=3", "out"),
        ("compare", "metrics=nll", "metrics"),
        ("compare", "+trust=[a]", "trust"),
        ("verify", "+repair=true", "repair"),
        ("verify", "trust=mine", "trust"),
        ("predict", "output=3", "output"),
        ("predict", "+mode=3", "mode"),
        ("llc", "localization=0", "localization"),
        ("llc", "temperature=cold", "temperature"),
        ("llc", "+step=3", "step"),
        ("distil", "hidden=[0]", "hidden"),
        ("distil", "val_fraction=1", "val_fraction"),
        ("distil", "mixtures=-1", "mixtures"),
        ("verify", "law=maybe", "law"),
        ("calibrate", "length=0", "length"),
        ("calibrate", "+steps=3", "steps"),
    ],
)
def test_the_other_commands_name_the_key_too(script, tmp_path, monkeypatch, command, override, word):
    monkeypatch.chdir(tmp_path)
    runs, table = ("runs=[a]",), ("run=a", "input=a.csv", "output=b.csv")
    needed = {"evaluate": runs, "compare": runs, "predict": table}.get(command, ("run=a",))
    assert f"{word} " in refusal(script(command, *needed, override))
    assert list(tmp_path.iterdir()) == []
