"""Tests of `bdl.contrib.distillation.command`: what it writes and refuses; and a thinned run under the commands."""

import json

import pytest
import torch
from running import done, refusal

import bdl
from bdl.contrib.distillation.command import student_model
from bdl.errors import ConfigError
from bdl.models import MLP

SHORT = ("steps=40", "mixtures=0")


def test_a_run_is_distilled(run, script, tmp_path):
    """The files hold a student that predicts, with the scores of the average; one line says what it loses."""
    status, out, err = script("distil", str(run), *SHORT, "hidden=[7]", f"out={tmp_path}")
    assert status == 0 and len(out.strip().splitlines()) == 1, err
    scores = json.loads((tmp_path / "scores.json").read_text())
    metrics = json.loads((run / "metrics.json").read_text())
    assert scores["teacher/nll"] == pytest.approx(metrics["test/bma/nll"], rel=1e-4)
    assert f"{scores['student/nll']:.4f}" in out and f"{scores['student/nll'] - scores['teacher/nll']:+.4f}" in out
    saved = torch.load(tmp_path / "student.ckpt", weights_only=True)
    assert saved["model"]["sizes"] == [36, 7, 7] and saved["scores"] == scores
    student = bdl.Distilled.load(tmp_path / "student.ckpt", MLP((36, 7, 7)))
    x, y = bdl.data.LandsatDataModule().tensors("test")
    prediction = student.predict(x)
    nll = -prediction.probs[torch.arange(len(y)), y].log().mean()
    assert float(nll) == pytest.approx(scores["student/nll"], rel=1e-4)
    again = script("distil", str(run), *SHORT, "hidden=[7]", f"out={tmp_path / 'again'}")
    assert (
        again[0] == 0 and (tmp_path / "again" / "student.ckpt").read_bytes() == (tmp_path / "student.ckpt").read_bytes()
    )


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["batch_size=null"], "batch_size=null"),
        (["weight_decay=1000"], "weight_decay must be"),
        (["layers=3"], "layers"),
        (["components=0"], "components"),
        (["crossings=some"], "crossings"),
    ],
)
def test_wrong_settings_are_one_line(run, script, tmp_path, overrides, words):
    assert words in refusal(script("distil", str(run), *SHORT, f"out={tmp_path}", *overrides))
    (tmp_path / "file").write_text("")
    assert "is a file" in refusal(script("distil", str(run), *SHORT, f"out={tmp_path / 'file'}"))


def test_a_thinned_run_is_a_run(run, script, tmp_path):
    """What `Posterior.save` writes is verified, evaluated and distilled as the run that it is from."""
    data = bdl.data.LandsatDataModule()
    small = bdl.Posterior.load(run, MLP((36, 6))).thin(3, data.slices("test"), by="nll")
    small.save(tmp_path / "small")
    done(script("verify", str(tmp_path / "small")))
    done(script("evaluate", str(tmp_path / "small"), "splits=[test]", f"out={tmp_path / 'e'}"))
    metrics = json.loads((tmp_path / "e" / "metrics.json").read_text())
    assert metrics["samples"] == 3
    assert metrics["test/bma/nll"] == pytest.approx(small.thinning.scores["chosen"], rel=1e-4)
    assert "in place of 3" in done(script("distil", str(tmp_path / "small"), *SHORT))


def test_the_model_of_a_student():
    scale = {
        "_target_": "bdl.likelihoods.with_constant_scale",
        "net": {"_target_": "m", "sizes": [8, 4, 1]},
        "targets": 1,
    }
    assert student_model(scale, 2, 1, None) == {"_target_": "m", "sizes": [8, 64, 64, 64, 3]}
    wide = {"_target_": "m", "sizes": [8, 16, 100, 16, 16, 1]}
    assert student_model(wide, 2, 0, None)["sizes"] == [8, 100, 100, 100, 100, 2]
    assert student_model(wide, 2, 0, [])["sizes"] == [8, 2]
    resnet = {"_target_": "bdl.models.ResNet", "num_classes": 10}
    assert student_model(resnet, 10, 1, None)["num_classes"] == 11
    assert student_model({"_target_": "m", "vocabulary": 9}, 9, 1, None) == {"_target_": "m", "vocabulary": 9}
    with pytest.raises(ConfigError, match=r"hidden=\[3\] is about an MLP"):
        student_model(resnet, 10, 1, [3])
