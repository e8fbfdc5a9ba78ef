"""sampler.only=... and start=checkpoint from the command line: samples, report, and one-line refusals."""

from pathlib import Path

import pytest
import torch
from composing import compose
from running import refusal, whole

import bdl
from bdl.models import MLP
from bdl.run.config import config_hash
from bdl.run.records import read_metrics

NET = ("model.sizes=[36,5,6]", "chains=2")


def weights(folder: Path, sizes=(36, 5, 6)) -> str:
    torch.manual_seed(0)
    path = folder / "weights.pt"
    torch.save(MLP(sizes).state_dict(), path)
    return str(path)


def test_a_part_is_sampled_from_the_command_line(tmp_path):
    path, run = weights(tmp_path), tmp_path / "run"
    last = [name for name, _ in MLP((36, 5, 6)).named_parameters()][-2].rpartition(".")[0]
    whole(run, *NET, f"sampler.only={last}.*", "start=checkpoint", f"start.path={path}")
    store, saved = bdl.SampleStore(run), torch.load(path, weights_only=True)
    assert set(store.read(store.records()[0])) == {f"{last}.weight", f"{last}.bias"}
    posterior = bdl.Posterior.load(run, MLP((36, 5, 6)))
    frozen = posterior.stored.frozen
    assert set(frozen) == set(saved) - {f"{last}.weight", f"{last}.bias"}
    assert all(torch.equal(value, saved[name]) for name, value in frozen.items())
    evaluation = posterior.evaluate(bdl.data.LandsatDataModule().slices("test"))
    assert read_metrics(run / "metrics.json")["test/bma/nll"] == pytest.approx(evaluation.metrics()["bma/nll"])


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["sampler.only=nothing.*", "start=checkpoint", "start.path={path}"], "matches no parameter: there are"),
        (["sampler.only='*.bias'"], "at random values: start=checkpoint start.path=..."),
        (["start=checkpoint", "start.path={path}", "model.sizes=[36,4,6]"], "holds another network"),
        (["start=checkpoint", "start.path=nowhere.pt"], "start.path=nowhere.pt does not exist"),
        (["sampler.only=3"], "sampler.only must be a pattern of names such as fc.*"),
        (["sampler.frozen=off"], 'sampler.frozen must be "eval" or "train"'),
        (["sampler.blocks={{nothing.*:{{_target_:bdl.Block}}}}"], "matches no parameter"),
        (["sampler.blocks={{nothing.*:{{_target_:bdl.Block,lr_factor:0}}}}"], "lr_factor of a block must be"),
    ],
    ids=["pattern", "random", "network", "file", "type", "mode", "block", "factor"],
)  # fmt: skip
def test_wrong_settings_are_one_line(overrides, words, script, tmp_path):
    path = weights(tmp_path)
    given = [override.format(path=path) for override in overrides]
    given = given if any("model.sizes" in o for o in given) else [*given, "model.sizes=[36,5,6]"]
    run = tmp_path / "run"
    line = refusal(
        script("train", f"hydra.run.dir={run}", "trainer=debug", "logger=none", "chains=2", "length=12", *given)
    )
    assert words in line
    assert not (run / "samples").exists()


def test_old_runs_keep_their_folder_other_weights_get_another(tmp_path):
    plain = config_hash(compose("trainer=debug"))
    assert config_hash(compose("trainer=debug", "sampler.only=null", "sampler.frozen=eval")) == plain
    path = weights(tmp_path)
    first = config_hash(compose("trainer=debug", "start=checkpoint", f"start.path={path}"))
    weights(tmp_path, (36, 4, 6))
    assert config_hash(compose("trainer=debug", "start=checkpoint", f"start.path={path}")) != first != plain
