"""bench.py: the laws it expects and checks, its clocks, and its reports in tiny rounds."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from benchmarks.speed import chains as bench_chains
from benchmarks.speed import predict as bench_predict
from benchmarks.speed import scale as bench_scale
from benchmarks.speed import start as bench_start
from benchmarks.speed import store as bench_store
from benchmarks.speed.law import compare, record, ten, trained
from benchmarks.speed.problem import Quadratic, landsat, regression
from benchmarks.speed.scale_report import draw, markdown
from benchmarks.speed.timing import Clock, TakeTurns
from benchmarks.speed.torch_kernels import BareLoop, SamplerLoop, samples
from composing import SCRIPTS
from repeats import slow_where

from bdl.errors import ConfigError


def in_new_process(code: str) -> str:
    """What a Python of its own prints: JAX's threads do not survive the forks of other tests."""
    code = f"import sys; sys.path.insert(0, {str(SCRIPTS)!r}); {code}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


@pytest.fixture(scope="module")
def law() -> Quadratic:
    return Quadratic(regression())


def test_expected_energy_is_stationary_variance_of_recurrence(law):
    # θ follows an AR(2) process in every eigendirection k of U; p = lr k / N. Its variance in closed form, times k / 2:
    p = regression().lr * np.linalg.eigvalsh(law.matrix) / regression().num_data
    a = regression().friction
    ours = 0.5 / (1 - p / (2 * (2 - a)))
    explicit = 0.5 * a / (a - p) * (2 - a + p) / (2 - a + p / 2)
    assert law.mean() == pytest.approx(ours.sum(), rel=1e-9)
    assert law.mean(explicit=True) == pytest.approx(explicit.sum(), rel=1e-9)


def test_expected_energy_follows_momenta_drawn_every_second_step(law):
    # θ'' = (1 - p) θ + (2 - a) m + sqrt(2 a lr tau) z with m ~ N(0, lr tau), and k lr tau = p T
    p = regression().lr * np.linalg.eigvalsh(law.matrix) / regression().num_data
    a = regression().friction
    energy = 0.5 * p * ((2 - a) ** 2 + 2 * a) / (1 - (1 - p) ** 2)
    assert law.mean(explicit=True, refresh=2) == pytest.approx(energy.sum(), rel=1e-9)


def test_the_energy_is_that_of_the_posterior(law):
    p = regression()
    theta = np.random.default_rng(0).normal(size=(3, p.dim))
    x, y = p.x.double().numpy(), p.y.double().numpy()[:, 0]
    potential = [0.5 * np.square(y - x @ t[:4] - t[4]).sum() + 0.5 * t @ t for t in [*theta, law.minimum]]
    np.testing.assert_allclose(law.energy(theta), np.array(potential[:3]) - potential[3], rtol=1e-9)


@pytest.mark.parametrize("kind", slow_where(lambda kind: kind != "train.py", ["Sampler.step", "bare loop", "train.py"]))
def test_torch_contestants_sample_the_law(law, kind, capsys):
    if kind == "train.py":
        states = trained(100)
    else:
        loop, count = (SamplerLoop(regression(), 64), 100) if kind == "Sampler.step" else (BareLoop(regression()), 1000)
        states = record(ten(loop.step), loop.theta, count)
    compare(kind, law.energy(states), law.mean(), 2.5)
    assert f"law checked: {kind}: mean energy" in capsys.readouterr().out


@pytest.mark.slow
def test_scans_in_jax_sample_the_law():
    """bench.py makes the same check before it measures."""
    lines = in_new_process("from benchmarks.speed import against_jax; against_jax.check_jax()").splitlines()
    assert [line.partition(": mean")[0] for line in lines] == ["law checked: JAX scan", "law checked: blackjax sghmc"]


@pytest.mark.slow
def test_the_comparison_with_jax_divides_what_it_measured():
    ratios, times = json.loads(
        in_new_process(
            "import json, torch; from benchmarks.speed import against_jax as b; torch.set_num_threads(1); "
            "b.check_jax = b.check_torch = lambda: None; b.CHAINS, b.BLOCK = {1: 4, 2: 4}, {1: 10, 2: 10}; "
            "b.KEEP_EVERY = b.WARM_UP = 2; times, ratios = b.bench(1); print(json.dumps([ratios, times]))"
        ).splitlines()[-1]
    )
    one, two = times["JAX scan, 2 chains"][0], times["bdl train.py, 2 chains"][0]
    assert len(times) == 9 and one > 0
    assert ratios["bdl train.py, 2 chains / JAX scan"] == two / one
    assert ratios["JAX scan, 2 chains: us per chain-step"] == one / 2 * 1e3
    assert ratios["bdl train.py, 1 chain / bare torch loop"] > 0


def test_a_kernel_of_another_law_is_refused():
    energies = np.random.default_rng(0).gamma(2.5, size=(1000, 8))  # energies of five directions at T = 1
    compare("right", energies, 2.5, 2.5)
    with pytest.raises(SystemExit, match="k: mean energy .* standard errors off: this kernel samples another law"):
        compare("k", 1.1 * energies, 2.5, 2.5)
    with pytest.raises(SystemExit, match="mean energy nan"):
        compare("k", np.nan * energies, 2.5, 2.5)


def test_first_step_and_evaluation_are_read_off_files_of_a_run(tmp_path, monkeypatch):
    """A command of 9 s that began at 100 s wrote config.yaml at 104 s, and checkpoints of stacks at 106 and 107 s."""

    def command(*words: str) -> float:
        assert words[-2:] == ("length=10", f"hydra.run.dir={tmp_path}")
        (tmp_path / "checkpoints").mkdir()
        for name, at in {"config.yaml": 104, "checkpoints/last.ckpt": 107, "checkpoints/last-1.ckpt": 106}.items():
            (tmp_path / name).touch()
            os.utime(tmp_path / name, (at, at))
        return 9.0

    monkeypatch.setattr(bench_start, "seconds_of", command)
    monkeypatch.setattr(bench_start.time, "time", lambda: 100.0)
    assert bench_start.of_run(tmp_path, 10) == {"first step": 4.0, "evaluation": 2.0}


@pytest.mark.slow
def test_the_parts_of_an_evaluation_are_measured():
    times, ratios = bench_start.bench_start(1, steps=200)
    assert all(len(t) == 1 for t in times.values()) and len(times) == 9
    assert min(times[name][0] for name in ("import torch", "--help", "first step", "evaluation")) > 0
    assert ratios["evaluation / import torch"] == times["evaluation"][0] / times["import torch"][0]


def run_batches(callback, steps: list[int], max_steps: int = 10**9) -> None:
    for step in steps:
        trainer = SimpleNamespace(global_step=step, max_steps=max_steps)
        callback.on_train_batch_end(trainer, None, None, None, 0)


def test_the_clock_divides_by_the_steps_between_its_two_readings(monkeypatch):
    readings = iter([1.0, 1.8])
    monkeypatch.setattr("time.perf_counter", lambda: next(readings))
    clock = Clock(10, lambda: None)
    run_batches(clock, [7, 14, 21, 30], max_steps=30)
    assert clock.milliseconds == pytest.approx(800 / (30 - 14))


def test_turns_come_after_at_least_a_block_of_steps(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    calls = []
    turns = TakeTurns(4, lambda: calls.append(1), lambda: None)
    run_batches(turns, [3, 6, 9, 12, 18])
    # Turns at 6, 12 and 18 of 4 calls each; each turn reads the clock twice around its calls and once after them
    assert len(calls) == 12 and len(turns.trainer_times) == len(turns.step_times) == 2
    assert turns.trainer_times == [1e3 / 6, 1e3 / 6]


@pytest.fixture
def panels(monkeypatch):
    monkeypatch.setattr(bench_scale, "SECONDS", 1e-4)
    monkeypatch.setattr(bench_scale, "SAMPLE_CHAINS", 2)
    return [
        bench_scale.chains((1, 3)),
        bench_scale.parameters((10, 100)),
        bench_scale.tensors((1, 4)),
        bench_scale.samples((2, 4)),
    ]


def test_scale_measures_every_point_and_reports_it(panels, tmp_path):
    assert [[curve.x for curve in panel.curves] for panel in panels] == [
        [[1, 3]], [[10, 100]] * 2, [[1, 4]] * 2, [[2, 4]],
    ]  # fmt: skip
    assert all(y > 0 for panel in panels for curve in panel.curves for y in curve.y)
    draw(panels, "a machine", tmp_path / "scale.png")
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")
    table = markdown(panels, "a machine").splitlines()
    assert table[0] == "Measured on a machine." and len(table) == 4 + 2 + 4 + 4 + 2
    assert table[4].startswith("| chains in a stack | 1 | bdl: µs per chain-step | ")


@pytest.mark.slow
def test_processes_count_their_steps_side_by_side():
    cores = sorted(os.sched_getaffinity(0))[:2] if hasattr(os, "sched_getaffinity") else [0]
    measured, ideal = bench_scale.processes(cores).curves
    assert measured.x == ideal.x == list(range(1, len(cores) + 1))
    assert all(y > 0 for y in measured.y) and ideal.y == [n * measured.y[0] for n in ideal.x]


def test_what_memory_cannot_hold_is_left_out(monkeypatch, capsys):
    monkeypatch.setattr(bench_scale, "SECONDS", 1e-4)
    monkeypatch.setattr(bench_scale, "free_memory", lambda: 4 * 50 * bench_scale.NUMBERS)
    assert bench_scale.parameters((10, 100)).curves[0].x == [10]
    assert "100 parameters are left out" in capsys.readouterr().out


def test_synthetic_samples_are_read_back(tmp_path):
    bench_predict.write_samples(tmp_path, 3, 2)
    assert samples(landsat(), str(tmp_path)).shape == (3, 2, 2226)


def test_results_go_to_the_console_and_to_json(script, tmp_path):
    status, out, _ = script("bench", "update", "--rounds", "1", "--json", str(tmp_path / "b.json"))
    results = json.loads((tmp_path / "b.json").read_text())
    assert status == 0 and "bdl SGHMC / floor" in out
    assert results["machine"]["device"] and results["machine"]["versions"]["torch"]
    times = results["update"]["milliseconds"]
    wanted = times["bdl SGHMC"] / times["floor: normal_ + fused SGD"]
    assert results["update"]["ratios"]["bdl SGHMC / floor"] == pytest.approx(wanted)


def test_a_missing_package_leaves_its_names_out(script, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setitem(sys.modules, "blackjax", None)
    for name in ("against_jax", "jax_kernels"):
        monkeypatch.delitem(sys.modules, f"benchmarks.speed.{name}", raising=False)
    status, out, _ = script("bench", "jax")
    assert status == 0 and "jax is left out" in out and "pip install -e '.[bench]'" in out


def test_an_unknown_name_is_refused_with_the_names_there_are(script):
    status, _, errors = script("bench", "jacks")
    assert status == 2 and "unknown name 'jacks': choose from update, train" in errors[-1]


def test_graphs_need_a_gpu(script):
    status, _, errors = script("bench", "graphs")
    assert status == 2 and "add --device cuda" in errors[-1]


def test_predictions_are_timed_beside_the_loops(monkeypatch):
    for name, value in {"FILES": 2, "ROWS": 5, "NETWORKS": 2, "IMAGES": 1}.items():
        monkeypatch.setattr(bench_predict, name, value)
    times, ratios = bench_predict.bench_predict(rounds=1)
    assert len(times) == 8 and len(ratios) == 5
    assert all(value > 0 for value in ratios.values())


def test_files_of_samples_are_timed_beside_plain_writes(monkeypatch):
    monkeypatch.setattr(bench_store, "NETWORKS", {"small": (lambda: torch.nn.Linear(2, 2), 3)})
    times, ratios = bench_store.bench_store(rounds=1)
    assert [name.split(",")[0] for name in times] == ["bdl write", "plain write"]
    assert list(ratios) == ["bdl write, small, " + next(iter(times)).split(", ")[2] + " a second / sampling"]


@pytest.mark.slow
def test_the_memory_of_a_run_is_read_at_a_tenth_and_at_the_end():
    small = ("length=200", "model.sizes=[36,6]", "collect.keep.burn_in=50", "collect.keep.every=50", "compile=false")
    _, ratios = bench_store.bench_memory(*small)
    assert 50 < ratios["MB at 10%"] < 5000
    assert 0.5 < ratios["memory at 100 % / at 10 % of the steps"] < 2
    with pytest.raises(RuntimeError, match="status 1"):
        bench_store.bench_memory("sampler.lr=-1")


def test_average_of_resnets_that_is_timed_is_that_of_its_loop(monkeypatch):
    monkeypatch.setattr(bench_predict, "NETWORKS", 2)
    images = torch.randn(3, 3, 32, 32)
    torch.manual_seed(0)
    module = bench_predict.averaged_resnets()
    torch.manual_seed(0)
    torch.testing.assert_close(module(images), bench_predict.forwards(images)())


@pytest.mark.slow
def test_a_stack_on_each_of_two_devices_is_timed_beside_one():
    times, ratios = bench_chains.bench_chains(1, torch.device("cpu"), devices=2)
    for name in ("MLP x 8", "ResNet8 x 4"):
        assert len(times[f"{name}, one device"]) == len(times[f"{name}, the slowest of 2 devices"]) == 1
        assert ratios[f"{name}, 2 devices / one"] > 0


def test_more_devices_than_there_are_is_refused():
    with pytest.raises(ConfigError, match="devices=4096, but this machine has"):
        bench_chains.bench_chains(1, torch.device("cpu"), devices=4096)
