"""Tests of `bdl.contrib.certificate.certify` and `.continued`: a heated run is told, an exact one not."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from running import done, refusal, sampled

import bdl
from bdl.disk.manifest import Manifest
from bdl.models import MLP
from bdl.run.verify import look

CHAINS = 8
TABLE = (
    "trainer=debug", "logger=none", "data=csv", "data.target=y", "model.hidden=[]", f"chains={CHAINS}", "tune=false",
    "~start", "sampler.prior.precision=4", "stacks=1",
)  # fmt: skip
EXACT = ("sampler=hmc", "sampler.dynamics.adapt_steps=60", "collect.keep.burn_in=80", "collect.keep.every=4")
HOT = ("sampler=sgld", "data.batch_size=10", "sampler.lr=2", "collect.keep.burn_in=500", "collect.keep.every=20")
SHORT = ("law=true", "trajectories=40", "seconds=1")


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> str:
    """Logistic regression of 200 rows on 4 columns."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(200, 4, generator=random)
    y = torch.rand(200, generator=random) < (x @ torch.tensor([1.5, -1.0, 0.5, 0.0])).sigmoid()
    path = tmp_path_factory.mktemp("table") / "table.csv"
    rows = [",".join(f"{v:.5f}" for v in row) + f",{'yes' if label else 'no'}" for row, label in zip(x, y, strict=True)]
    path.write_text("\n".join(["a,b,c,d,y", *rows]))
    return f"data.path={path}"


@pytest.fixture(scope="module")
def exact(tmp_path_factory, table) -> Path:
    folder = tmp_path_factory.mktemp("exact") / "run"
    sampled(folder, *TABLE, table, *EXACT, steps=280)
    return folder


@pytest.fixture(scope="module")
def hot(tmp_path_factory, table) -> Path:
    """Batches of 10 at a large step heat it."""
    folder = tmp_path_factory.mktemp("hot") / "run"
    sampled(folder, *TABLE, table, *HOT, steps=1500)
    return folder


def test_an_exact_run_is_not_contradicted_and_nothing_is_written(exact, script):
    before = {path: path.stat().st_mtime_ns for path in exact.rglob("*")}
    out = done(script("verify", f"run={exact}", *SHORT))
    assert out.rstrip().splitlines()[-1].endswith("nats): nothing contradicts T = 1"), out
    assert "nothing is bad" in out and "batch noise 1" in out and "NLL of single networks" in out
    assert before == {path: path.stat().st_mtime_ns for path in exact.rglob("*")}


def test_a_heated_run_is_told_and_leaves_the_status_0(hot, script):
    status, out, err = script("verify", f"run={hot}", *SHORT)
    last = out.rstrip().splitlines()[-1]
    assert status == 0, err
    assert last.startswith("the energy falls by ") and "the run sampled a hotter law than T = 1; along " in last


@pytest.fixture(scope="module")
def kept(hot, tmp_path_factory) -> Path:
    """A copy of the heated run with its continuation."""
    from bdl.run.command import command  # noqa: F401  (registers what configurations need)

    return Path(shutil.copytree(hot, tmp_path_factory.mktemp("kept") / "run"))


def test_kept_states_are_a_run_of_their_own(kept, script, tmp_path):
    """20 states of every chain after the first half, at a lower energy; commands read them, and nothing merges them."""
    assert "kept: 160 networks in" in done(script("verify", f"run={kept}", *SHORT, "keep=true"))
    folder = kept / "continued"
    net = MLP((4, 2))
    before, after = (bdl.Posterior.load(f, net) for f in (kept, folder))
    assert after.samples == 20 * CHAINS and after.chains == CHAINS
    assert after.records[0].step == before.records[-1].step + 21
    energies = [p.recorded("energy_full").mean(1) for p in (before, after)]
    change = energies[1] - energies[0]
    assert change.mean() < -3 * change.std() / math.sqrt(CHAINS)
    law = json.loads((folder / "law.json").read_text())
    assert law["energy/continuation"] < -3 * law["energy/continuation_se"]
    assert law["temperature/direction/all"] > 1.2 and law["trajectories"] == 40
    with pytest.raises(bdl.StoreError, match="not merged: continued"):
        bdl.Posterior.load([kept, folder], net)
    assert {row.what for row in look(folder) if row.state == "bad"} == set()
    done(script("evaluate", f"runs={folder}", f"out={tmp_path / 'out'}"))
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["samples"] == 160 and metrics["t_eff"] == 1 and metrics["noise_ratio"] == 0
    assert "continued: law.json" in done(script("verify", f"run={kept}"))
    assert "continued holds samples already: move or remove it" in refusal(
        script("verify", f"run={kept}", *SHORT, "keep=true")
    )


def test_the_kept_states_follow_the_law(exact, kept, script):
    """The averages of the heated run's continuation are those of an exact run, and its own are not."""
    if not (kept / "continued").exists():
        script("verify", f"run={kept}", *SHORT, "keep=true")
    net = MLP((4, 2))
    right, after, before = (bdl.Posterior.load(f, net) for f in (exact, kept / "continued", kept))
    means = [torch.tensor(p.recorded("energy_full").mean(1)) for p in (right, after, before)]
    error = [float(m.std()) / math.sqrt(len(m)) for m in means]
    assert abs(float(means[1].mean() - means[0].mean())) < 4 * math.hypot(error[0], error[1])
    assert float(means[2].mean() - means[0].mean()) > 4 * math.hypot(error[0], error[2])


def record(run: Path, **changes) -> None:
    """Change target.json or config.yaml as a run of another kind has it."""
    for name, value in changes.items():
        if name == "target":
            path = run / "samples" / "target.json"
            content = json.dumps({**json.loads(path.read_text()), **value}).encode()
            Manifest(run, 0).write("samples/target.json", "target", content)
        else:
            config = OmegaConf.load(run / "config.yaml")
            OmegaConf.update(config, name.replace("__", "."), value, force_add=True)
            Manifest(run).write("config.yaml", "config", OmegaConf.to_yaml(config).encode())


def test_what_has_no_certificate_is_refused_in_one_line(table, tmp_path, script):
    """Runs that are as long as it takes to keep two samples."""
    few = ("collect.keep.burn_in=4", "collect.keep.every=2")
    cases = {
        "T = 0 a run is an optimiser": ("sampler=sghmc", "sampler.temperature=0", "shared_batches=false"),
        "a weighted distribution": ("sampler=awsghmc", "sampler.weighting.zeta=1"),
        "variational approximation": ("sampler=bbb",),
        "dropout makes the energy": ("sampler=sghmc", "model.hidden=[3]", "model.dropout=0.2"),
    }
    for number, (words, overrides) in enumerate(cases.items()):
        run = tmp_path / str(number)
        sampled(run, *TABLE, table, *few, *overrides, steps=12)
        assert words in refusal(script("verify", f"run={run}", *SHORT)), words


@pytest.mark.filterwarnings("ignore::bdl.errors.BdlWarning")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": {"approximation": {"type": "bdl.SWAG"}}}, "draws of an approximation"),
        ({"sampler__prior__precision": 5}, "the prior in the config.yaml of"),
    ],
    ids=["approximation", "prior"],
)
def test_recorded_laws_that_do_not_fit_are_refused(exact, tmp_path, script, changes, words):
    run = Path(shutil.copytree(exact, tmp_path / "run"))
    record(run, **changes)
    assert words in refusal(script("verify", f"run={run}", *SHORT))


def test_keys_that_do_not_fit_are_named(exact, script):
    assert "keep=true stores the states of law=true" in refusal(script("verify", f"run={exact}", "keep=true"))
    assert "trajectories must be" in refusal(script("verify", f"run={exact}", "law=true", "trajectories=2"))
    assert "seconds must be" in refusal(script("verify", f"run={exact}", "law=true", "seconds=0"))
    slow = refusal(script("verify", f"run={exact}", "law=true", "seconds=0.000001"))
    assert "trajectories=20 waits for them" in slow and "a gradient over all " in slow
