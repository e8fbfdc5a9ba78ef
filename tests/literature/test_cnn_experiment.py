"""The experiment `cnn`: scores along a run against averages by hand, paired differences, one run from end to end."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from literature import Context, cnn
from literature.cnn_quick import gratings, quick_runs, write_images
from literature.cnn_scores import Outcome, Run, difference, follow
from literature.cnn_tables import cycles_table, end_of_cycle, margins_table, scores_table
from omegaconf import OmegaConf
from running import refusal

from bdl.data.cifar import load_cifar
from bdl.errors import ConfigError
from bdl.posterior.metrics import classification_metrics
from bdl.run.records import read_metrics, write_metrics

LABELS = torch.tensor([0, 1, 2, 0])
CYCLES = [0, 0, 1, 1, 1]
NAMES = {"cnn_sgd": "SGD", "cnn_csgmcmc": "cSG-MCMC"}


def probabilities(seed: int = 0) -> torch.Tensor:
    """(5, 4, 3) of five states."""
    return torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(seed)).softmax(-1)


def along(probs: torch.Tensor, cycles: list[int] = CYCLES) -> list:
    return [(SimpleNamespace(step=10 * k + 10, cycle=c), p) for k, (c, p) in enumerate(zip(cycles, probs, strict=True))]


def run(seed: int = 0, cycles: list[int] = CYCLES, draws: int = 0) -> Run:
    return Run(100, seed, "abacus", 5.0, follow(along(probabilities(draws), cycles), LABELS), {})


def test_the_history_has_every_state_and_its_averages():
    probs = probabilities()
    history = follow(along(probs), LABELS)
    assert (history.steps, history.cycles) == ([10, 20, 30, 40, 50], CYCLES)
    for k in range(5):
        for scores, p in ((history.states, probs[k]), (history.averages, probs[: k + 1].mean(0))):
            expected = classification_metrics(p, LABELS)
            assert scores["accuracy"][k] == pytest.approx(100 * expected["accuracy"])
            assert scores["nll"][k] == pytest.approx(expected["nll"])
            assert scores["ece"][k] == pytest.approx(100 * expected["ece"], abs=1e-4)
    each = [classification_metrics(p.mean(0), LABELS)["nll"] for p in (probs[:2], probs[2:])]
    assert history.cycle_averages["nll"] == pytest.approx(each)


def test_the_average_is_of_probabilities_and_not_of_logits():
    p = torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]], [[0.5, 0.5]]])
    history = follow(along(p, [0, 0, 0]), torch.tensor([0]))
    assert history.averages["nll"] == pytest.approx([-torch.tensor(q).log().item() for q in (0.9, 0.5, 0.5)])


def test_differences_are_paired():
    """Two predictions that are wrong on the same items differ without error, however hard the items are."""
    hard = torch.tensor([1.0, 0.0, 1.0, 0.0])
    a = Outcome(hard, torch.tensor([-0.1, -3.0, -0.2, -4.0]))
    gain = difference([(a, Outcome(hard, a.log_p - 0.5))])
    assert gain["accuracy"] == (0, 0) and gain["nll"] == pytest.approx((-0.5, 0), abs=1e-6)
    better = Outcome(torch.tensor([1.0, 1.0, 1.0, 0.0]), a.log_p)
    mean, error = difference([(better, a)])["accuracy"]
    assert (mean, error) == pytest.approx((25, 25))  # differences 0, 100, 0, 0
    assert difference([(better, a), (a, a)])["accuracy"] == pytest.approx((12.5, 12.5))


def test_each_average_is_compared_with_sgd_of_the_same_seed():
    runs = {"cnn_sgd": [run(1, draws=3)], "cnn_csgmcmc": [run(0), run(1, draws=2)]}
    rows = {(row[0], row[1]): row[2] for row in margins_table(runs, NAMES).rows}
    assert len(rows) == 4  # SGD is not compared with itself
    ours, sgd = runs["cnn_csgmcmc"][1].history, runs["cnn_sgd"][0].history
    points = ours.averages["accuracy"][-1] - sgd.states["accuracy"][-1]
    assert rows["cSG-MCMC", "SGD's last state"].startswith(f"{points:+.2f} ± ")
    alone = margins_table({"cnn_sgd": [], "cnn_csgmcmc": [run()]}, NAMES)
    assert [row[1] for row in alone.rows] == ["its own last state"]


def test_the_tables_say_which_runs_are_missing():
    table = scores_table({"cnn_sgd": [], "cnn_csgmcmc": [run()]}, NAMES, ["SGD (experiment=cifar10/cnn_sgd)"])
    assert table.rows[0][1:] == ["–"] * 10
    assert table.note.endswith("Not run yet: SGD (experiment=cifar10/cnn_sgd).")


def test_cycles_end_with_their_last_state():
    """Runs without cycles have no rows."""
    one = run()
    assert [end_of_cycle(one, k) for k in (0, 1)] == [1, 4]
    rows = cycles_table({"cnn_sgd": [run(cycles=[0] * 5)], "cnn_csgmcmc": [one]}, NAMES).rows
    assert [row[:2] for row in rows] == [["cSG-MCMC", "1"], ["cSG-MCMC", "2"]]
    assert (
        rows[1][7] == f"{one.history.averages['nll'][-1]:.3f}" and rows[0][7] == f"{one.history.averages['nll'][1]:.3f}"
    )


def finished(folder, cell: str, epochs: int) -> None:
    folder.mkdir()
    about = {"name": f"cifar10/{cell}", "device": "abacus"}
    OmegaConf.save({"trainer": {"max_epochs": epochs}, "provenance": about}, folder / "config.yaml")
    write_metrics(folder / "metrics.json", {})


@pytest.mark.parametrize(
    "epochs, words",
    [(None, r"runs of \[3, 100\] epochs .* choose a length with --epochs"), (7, "no finished run of 7 epochs")],
)
def test_runs_that_do_not_compare_get_one_line(tmp_path, epochs, words):
    finished(tmp_path / "a", "cnn_sgd", 100)
    finished(tmp_path / "b", "cnn_sgld", 3)
    finished(tmp_path / "c", "fixed_msgd", 500)
    with pytest.raises(ConfigError, match=words):
        cnn.read([tmp_path], Context(False, 0, runs=(tmp_path,), epochs=epochs))


def test_without_runs_there_is_one_line_on_how_to_make_them(script, tmp_path):
    error = refusal(script("cnn", "--out", str(tmp_path)))
    assert "no finished run of experiment=cifar10/cnn_... in no folder" in error and "--quick" in error


def test_the_made_images_tell_their_classes():
    """The nearest class mean of the spectrum's size, which ignores the phase, finds the class."""
    labels = torch.arange(200) % 10
    spectra = {split: torch.fft.rfft2(gratings(labels, split, 0).float().mean(1)).abs() for split in ("train", "test")}
    means = torch.stack([spectra["train"][labels == c].mean(0) for c in range(10)]).flatten(1)
    assert (torch.cdist(spectra["test"].flatten(1), means).argmin(1) == labels).double().mean() > 0.9


def test_the_made_images_are_found_in_place_of_cifar(tmp_path):
    write_images(tmp_path, 0)
    data = load_cifar(tmp_path, 10)
    assert torch.equal(data["x_train"], gratings(data["y_train"], "train", 0))
    assert data["y_test"].bincount().tolist() == [20] * 10


def test_images_that_are_gone_get_one_line(tmp_path):
    data = {"_target_": "bdl.data.CIFARDataModule", "root": str(tmp_path / "gone")}
    with pytest.raises(ConfigError, match="gone, which are needed again: put CIFAR-10 there"):
        cnn.run_of(OmegaConf.create({"data": data}), tmp_path)


@pytest.mark.slow
def test_a_quick_run_from_training_to_the_table(script, tmp_path, monkeypatch):
    with quick_runs(["cnn_csgmcmc_temp"], Context(True, 0)) as folder:
        (found,) = cnn.read([folder], Context(True, 0))["cnn_csgmcmc_temp"]
        metrics = read_metrics(folder / "cnn_csgmcmc_temp" / "metrics.json")
        for name, scores in (("one_sample", found.history.states), ("bma", found.history.averages)):
            expected = {s: metrics[f"test/{name}/{s}"] for s in ("accuracy", "nll", "ece")}
            assert scores["accuracy"][-1] / 100 == pytest.approx(expected["accuracy"])
            assert scores["nll"][-1] == pytest.approx(expected["nll"], rel=1e-4)
            assert scores["ece"][-1] / 100 == pytest.approx(expected["ece"], rel=1e-3)
        assert len(found.history.steps) == 100 and sorted(set(found.history.cycles)) == [0, 1, 2, 3, 4]
        monkeypatch.setattr("literature.cnn.quick_runs", lambda *_: nullcontext(folder))
        status, out, err = script("cnn", "--quick", "--out", str(tmp_path))
    assert (status, err) == (0, []) and "Not run yet: SGD (experiment=cifar10/cnn_sgd), SGLD" in out
    assert {p.name for p in (tmp_path / "cnn").iterdir()} == {"cnn.png", "table.md", "results.json"}
    (kept,) = json.loads((tmp_path / "cnn" / "results.json").read_text())["numbers"]["cnn_csgmcmc_temp"]
    assert len(kept["averages"]["nll"]) == 100 and "root" not in kept["config"]["data"]
    assert not folder.exists()
