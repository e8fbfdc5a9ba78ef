"""Tests of `bdl.run.tuning` and `.tuning_request`.

tune=auto and budget from the command line: what is found is recorded, reused, and kept out of the hash.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from composing import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from running import asked, planned, refusal

import bdl
from bdl.run import train, tuning
from bdl.run.build import build_stack
from bdl.run.config import config_hash, fill_in, seconds_of
from bdl.run.directory import RunDirectory
from bdl.run.plan import RunRequest
from bdl.run.processes import SINGLE
from bdl.run.tuning_request import given_names
from bdl.tune.choice import Choice, Tuning

AIRFOIL = Path(bdl.__file__).parent / "data" / "files" / "airfoil.csv"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """80 rows with text, gaps and a target near a million."""
    stream = np.random.RandomState(0)
    x = stream.randn(80, 2)
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "kind": stream.choice(["u", "v"], 80)})
    frame.loc[::7, "a"] = np.nan
    frame["y"] = 1e6 + 2e3 * x[:, 1] + 300 * stream.randn(80)
    path = tmp_path_factory.mktemp("table") / "table.csv"
    frame.to_csv(path, index=False)
    return path


def options(table, *more: str) -> list[str]:
    return [
        "data=csv", f"data.path={table}", "data.target=y", "sampler=sghmc", "chains=2", "model.hidden=[4]",
        "logger=none", "start.epochs=3", "trainer=debug", *more,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "words", "finds"),
    [
        ("classification", [], True),
        ("regression", [], False),
        ("regression", ["tune.temperature=true"], True),
        ("classification", ["tune.temperature=false"], False),
        ("classification", ["sampler.prior.precision=2"], False),
        ("classification", ["sampler.temperature=0.5"], False),
        ("classification", ["sampler=sghmc"], False),
        ("classification", ["sampler=resghmc", "stacks=1"], False),
        ("classification", ["sampler=awsghmc"], False),
    ],
)  # fmt: skip
def test_t_is_found_for_classes_whose_law_is_open(task, words, finds, table):
    """Under a sampler of all rows, without weighting or ladder, and where neither T nor the prior is given."""
    plan = planned("data=csv", f"data.path={table}", "data.target=y", "model.hidden=[4]", "run_dir=x", *words)
    stack = plan.of_stack(0, plan.data(0).build())
    assert plan.tuning is not None and plan.tuning.finds_temperature(task, stack.motion.sampler) is finds


@pytest.fixture(scope="module")
def finished(table, tmp_path_factory):
    """A run up to the end of sampling: its configuration, and the one that it recorded."""
    folder = tmp_path_factory.mktemp("tuned")
    cfg = compose(f"run_dir={folder}", *options(table))
    plan, directory = (
        tuning.tuned(RunRequest(cfg, HydraConfig.get()), SINGLE),
        RunDirectory(folder, config_hash(cfg)),
    )
    train.sample_stack(build_stack(plan, directory, 0), directory)
    return cfg, OmegaConf.load(folder / "config.yaml")


def test_what_is_found_is_recorded_where_it_belongs(finished):
    _, recorded = finished
    settings = recorded.found.settings
    assert set(settings) == {
        "data.batch_size", "sampler.lr", "sampler.dynamics.friction", "collect.keep.burn_in", "sampler.prior.precision",
    }  # fmt: skip
    assert all(OmegaConf.select(recorded, key) == value for key, value in settings.items())
    assert recorded.data.batch_size == 64 and len(recorded.found.reasons) == 5
    assert all(reason.startswith("tune: ") for reason in recorded.found.reasons)


def test_the_hash_depends_on_what_was_typed_alone(finished, table):
    cfg, recorded = finished
    assert recorded.provenance.config_hash == config_hash(cfg)
    assert config_hash(fill_in(cfg, {"found": {"settings": {"sampler.lr": 1.0}}})) == config_hash(cfg)
    assert config_hash(compose(*options(table, "tune=false"))) != config_hash(compose(*options(table)))


def test_a_run_that_has_begun_is_not_tuned_again(finished, monkeypatch):
    cfg, recorded = finished
    monkeypatch.setattr(tuning, "find_settings", lambda *_, **__: pytest.fail("tuned twice"))
    assert tuning.tuned(RunRequest(cfg, HydraConfig.get()), SINGLE).found == recorded.found


def test_given_keys_are_kept():
    typed = ["sampler.lr=0.01", "sampler/prior=laplace", "collect=last", "data.batch_size=16", "chains=2"]
    assert given_names(typed) == {"lr", "prior", "burn_in", "every", "samples_per_cycle", "batch_size"}
    assert given_names(["sampler.prior.precision=2", "+length=3"]) == {"prior", "steps", "length"}
    assert given_names(["sampler=sghmc"]) == given_names(["sampler.dynamics.friction=1"]) - {"friction"} == {"sampler"}


def test_a_batch_size_gets_a_sampler_that_takes_batches(table, tmp_path):
    """Where nobody chose a sampler, a line says so; with all rows in a batch MCLMC stays."""
    nobody_chose = [option for option in options(table) if option != "sampler=sghmc"]
    for size, sampler in ((16, "SGHMC"), (64, "MCLMC")):
        plan = tuning.tuned(asked(f"run_dir={tmp_path}", *nobody_chose, f"data.batch_size={size}"), SINGLE)
        stack = plan.of_stack(0, plan.data(0).build())
        assert type(stack.motion.sampler.dynamics).__name__ == sampler
        line = f"tune: sampler sghmc: a step of mclmc takes all 64 training rows, not {size}"
        assert (plan.found["reasons"][0] == line) == (size == 16)


def test_rows_beyond_a_step_get_batches_unless_the_user_chose(table, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "choose_sampler", lambda rows: "sghmc")
    nobody_chose = [option for option in options(table) if option != "sampler=sghmc"]
    plan = tuning.tuned(asked(f"run_dir={tmp_path}", *nobody_chose), SINGLE)
    settings = plan.found["settings"]
    assert settings["sampler.dynamics"] == {"_target_": "bdl.SGHMC", "friction": 0.1} and settings["length"] == 80_000
    assert plan.found["reasons"][1] == "tune: length 80000: steps of sghmc for 64 training rows"
    assert plan.found["reasons"][0].startswith("tune: sampler sghmc: a step of mclmc takes all 64 training rows")
    assert settings["data.batch_size"] == 64 and "sampler.lr" in settings
    stack = plan.of_stack(0, plan.data(0).build())
    assert isinstance(stack.motion.sampler.dynamics, bdl.SGHMC) and stack.motion.steps == 200  # trainer=debug
    monkeypatch.setattr(tuning, "find_settings", lambda *_, **__: Tuning((), 0.0, 0.0))
    chosen = tuning.tuned(asked(f"run_dir={tmp_path}", *nobody_chose, "sampler=mclmc"), SINGLE)
    assert "sampler.dynamics" not in chosen.found["settings"] and chosen.found["settings"]["length"] == 20_000
    assert (
        "length"
        not in tuning.tuned(asked(f"run_dir={tmp_path}", *nobody_chose, "length=300"), SINGLE).found["settings"]
    )


def test_a_run_keeps_the_promises_of_what_was_found(finished, table, tmp_path):
    """lr may fall where it was found, and the burn-in grow unless the user gave it. Nothing moves without tuning."""
    cfg, recorded = finished

    def promises(*more: str):
        plan = planned(f"run_dir={tmp_path}", *options(table, *more), found=recorded.found)
        built = build_stack(plan, RunDirectory(tmp_path, plan.hash), 0).callbacks
        return built.promises, built.schedule.functions["lr"]

    found, schedule = promises()
    assert (found.may_lower, found.may_extend, schedule) == (True, True, None)
    given, _ = promises("collect.keep.burn_in=3")
    assert (given.may_lower, given.may_extend) == (True, False)
    ramped, schedule = promises("schedule=cosine")
    assert not ramped.may_lower and schedule is not None
    assert promises("tune=false")[0] is None and promises("schedule=cyclical")[0] is None


@pytest.mark.parametrize(
    "typed, auto, temperature",
    [("tune=false", False, False), ("tune=auto", True, False), ("tune.temperature=true", True, True)],
)
def test_what_tune_asks_for(table, typed, auto, temperature):
    request = planned("run_dir=x", *options(table, typed)).tuning
    assert (request is not None, request is not None and request.temperature) == (auto, temperature)


def weighted(table, *overrides: str) -> list[str]:
    return ["sampler=awsghmc" if option == "sampler=sghmc" else option for option in options(table, *overrides)]


def test_zeta_alone_is_found_where_the_data_have_settings():
    tuning_request = planned("run_dir=x", "sampler=awsgnht").tuning
    assert tuning_request is not None and tuning_request.auto and tuning_request.weighting_alone
    assert tuning_request.promise({}, "auto").may_move is None
    liang = planned("run_dir=x", "experiment=landsat/liang", "sampler=awsghmc")
    assert liang.tuning is None  # it has a zeta
    with pytest.raises(bdl.ConfigError, match="and tune=false finds nothing: give a number, such as 1"):
        _ = planned("run_dir=x", "sampler=awsgnht", "tune=false")


@pytest.mark.parametrize(
    "overrides, reason",
    [
        (["trainer=ddp"], "nothing to find for trainer=ddp"),
        (["sampler.temperature=0", "sampler.lr=0.01"], "an optimiser has no distribution to weight"),
    ],
)
def test_without_trials_chains_are_not_weighted(overrides, reason, table, tmp_path, capsys):
    untrained = [option for option in weighted(table) if not option.startswith("start.")]
    plan = tuning.tuned(asked(f"run_dir={tmp_path}", *untrained, "~start", *overrides), SINGLE)
    assert plan.found["settings"]["sampler.weighting"] == {"_target_": "bdl.Flat"}
    assert reason in capsys.readouterr().out


def test_what_is_found_for_a_weighting_enters_the_configuration(table, tmp_path, monkeypatch):
    """The keys of the weighting, and an lr that follows from the known one; all else stays."""
    seen = {}

    def found(*_, weighting, given, **__):
        seen.update(given, zeta=weighting.zeta)
        value = {"zeta": 90.0, "edges": [-20.0, -10.0, 0.0], "form": "full"}
        return Tuning((Choice("weighting", value, "so"), Choice("lr", 0.01, "so")), 0.0, 0.0)

    monkeypatch.setattr(tuning, "find_settings", found)
    overrides = weighted(table, "tune.settings=false", "sampler.weighting.energy=ema", "~start")
    overrides = [option for option in overrides if not option.startswith("start.")]
    plan = tuning.tuned(asked(f"run_dir={tmp_path}", *overrides), SINGLE)
    assert seen.keys() == {"batch_size", "prior", "plain_lr", "friction", "burn_in", "zeta"} and seen["zeta"] == "auto"
    stack = plan.of_stack(0, plan.data(0).build())
    sampler = stack.motion.sampler
    assert sampler.lr == 0.01 and sampler.weighting == bdl.AdaptiveWeight(
        90.0, edges=[-20.0, -10.0, 0.0], form="full", energy="ema", rate=bdl.RobbinsMonro()
    )
    assert str(Choice("weighting", {"zeta": 90.0, "edges": [-20.0, 0.0], "form": "full"}, "so")) == (
        "tune: weighting zeta 90, edges [-20, 0], form full: so"
    )


def test_t_is_found_or_given(table, tmp_path):
    both = options(table, "tune.temperature=true", "sampler.temperature=0.5")
    with pytest.raises(bdl.ConfigError, match="both decide T: give one of them"):
        tuning.tuned(asked(f"run_dir={tmp_path}", *both), SINGLE)
    with pytest.raises(bdl.ConfigError, match="write tune.settings=auto beside tune.temperature=true"):
        _ = planned("run_dir=x", *options(table, "tune.temperature=true", "tune=auto")).tuning


def test_cycles_are_found_in_place_of_burn_in(table, tmp_path):
    found = tuning.tuned(asked(f"run_dir={tmp_path}", *options(table, "schedule=cyclical")), SINGLE).found
    assert found["settings"].keys() == {
        "data.batch_size", "sampler.prior.precision", "sampler.lr", "sampler.dynamics.friction",
        "schedule.cycle.cycles", "schedule.cycle.explore", "collect.keep.samples_per_cycle",
    }  # fmt: skip


def test_literature_keeps_its_settings(table):
    for overrides in ([], ["experiment=airfoil"], ["data=cifar10"], ["experiment=landsat/liang"]):
        request = asked("run_dir=x", *overrides)
        assert request.draft.tuning is None and tuning.tuned(request, SINGLE) is request.draft
    assert compose(*options(table)).tune.settings == "auto" and compose(*options(table)).start is not None


def test_a_short_run_has_the_step_size_of_a_long_one(tmp_path):
    """The curvature rises while a network trains: after a trial that trained little, a 16 times larger lr diverged."""
    airfoil = [f"data.path={AIRFOIL}", "data.target=target", "sampler=sghmc", "logger=none", f"run_dir={tmp_path}"]
    short, long = (
        tuning.tuned(asked("data=csv", *airfoil, f"length={steps}"), SINGLE).found["settings"]["sampler.lr"]
        for steps in (400, 20_000)
    )
    assert 0.5 < short / long < 2


@pytest.mark.parametrize("sampler", ["sgd", "swag"])
def test_an_optimiser_gets_an_lr_and_nothing_else(sampler, table, tmp_path, capsys):
    untrained = [option for option in options(table) if not option.startswith("start.")]
    request = asked(f"run_dir={tmp_path}", *untrained, f"sampler={sampler}", "~start")
    assert list(tuning.tuned(request, SINGLE).found["settings"]) == ["sampler.lr"]
    assert "validation NLL" in capsys.readouterr().out


def test_bayes_by_backprop_has_nothing_to_find(table, tmp_path, capsys):
    untrained = [option for option in options(table) if not option.startswith("start.")]
    request = asked(f"run_dir={tmp_path}", *untrained, "sampler=bbb", "~start")
    assert not tuning.tuned(request, SINGLE).found["settings"]
    assert "there is nothing to find for Bayes by Backprop" in capsys.readouterr().out


def test_a_budget_sets_the_steps(table, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "seconds_per_step", lambda *_: 0.01)
    monkeypatch.setattr(tuning, "seconds_of_evaluation", lambda *_: 1e-6)
    request = asked(f"run_dir={tmp_path}", *options(table, "tune=false", "budget=10m"))
    found = tuning.tuned(request, SINGLE).found["settings"]
    assert found["trainer.max_steps"] == found["length"]
    assert 0.9 * 587 / 0.0115 < found["length"] <= 587 / 0.0115  # less start-up and report, and the time of this test
    assert "collect.keep.every" not in found


def test_a_budget_bounds_the_predictions_too(table, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "seconds_per_step", lambda *_: 0.01)
    monkeypatch.setattr(tuning, "seconds_of_evaluation", lambda *_: 2.0)
    request = asked(f"run_dir={tmp_path}", *options(table, "tune=false", "budget=10m"))
    found = tuning.tuned(request, SINGLE).found["settings"]
    steps, every = found["length"], found["collect.keep.every"]
    assert 0.9 * (587 - 150) / 0.0115 < steps <= (587 - 150) / 0.0115  # a quarter of the budget predicts
    assert 0.6 * steps / every == pytest.approx(75, abs=1)


def test_a_budget_and_a_length_are_refused_together(script, tmp_path, table):
    command = ("train", *options(table, "budget=90s", "length=100"), f"hydra.run.dir={tmp_path / 'run'}")
    assert "budget=90s and length both say how many steps there are: give one of them" in refusal(script(*command))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("text, seconds", [("90s", 90), ("10m", 600), ("1.5h", 5400)])
def test_times(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["short", "10", "0s", "-1m", "10 m"])
def test_words_that_are_no_times(text):
    assert seconds_of(text) is None
