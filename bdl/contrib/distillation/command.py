"""One network in place of the samples of a run. See conf/distil.yaml."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn

import bdl
from bdl.contrib.distillation.student import numbers_kept
from bdl.disk.files import write_atomically
from bdl.errors import ConfigError
from bdl.posterior.outputs import Batches, output_shape
from bdl.run.config import plain
from bdl.run.directory import output_folder, refuse_links_of
from bdl.run.evaluate import recorded_data
from bdl.run.records import DISTILLED
from bdl.run.section import Section
from bdl.run.stored import load_runs
from bdl.seeding import derive_seed

STUDENT, RESULT = "student.ckpt", "scores.json"
LAYERS, WIDTH = 3, 64  # hidden layers of an MLP's student, at least: an average is no network of the run's size


def distil(cfg: DictConfig) -> None:
    """Train the student on the training items of the run, compare it on the test items, write it and its scores."""
    run = Path(str(cfg.run)).expanduser()
    refuse_links_of(run)
    out = output_folder(cfg.out, run / DISTILLED, f"{STUDENT} and {RESULT}")
    if unset := [name for name in ("batch_size", "lr") if cfg[name] is None]:
        raise ConfigError(f"{unset[0]}=null: give a number, or leave {unset[0]} out for the default")
    settings = bdl.Distillation(**{field.name: cfg[field.name] for field in fields(bdl.Distillation)})
    posterior, config = load_runs([run], cfg.trust, cfg.device, cfg.skip_bad)
    data = recorded_data(config, posterior)
    items = data.slices("train")
    shape = output_shape(posterior.net, Batches(items, posterior.device, posterior.read))
    likelihood = posterior.likelihood(items)
    kept, shares = numbers_kept(likelihood, shape[-1])
    kept *= cfg.components if likelihood.outputs == "values" else 1
    model = student_model(plain(config.model), kept, shares if cfg.split else 0, plain(cfg.hidden))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("distil", "start", cfg.seed))
        student: nn.Module = Section[nn.Module](model).build()
    found = posterior.distil(student, items, test=data.slices("test"), settings=settings)
    found.save(out / STUDENT, model=model)
    write_atomically(out / RESULT, json.dumps(dict(found.scores), indent=1).encode())
    scores, lost = found.scores, found.scores["student/nll"] - found.scores["teacher/nll"]
    print(
        f"one network in place of {found.networks:,}: test NLL {scores['student/nll']:.4f} where the "
        f"average has {scores['teacher/nll']:.4f}, {lost:+.4f} nats: {out / STUDENT}"
    )


def student_model(model: dict[str, Any], kept: int, shares: int, hidden: Sequence[int] | None) -> dict[str, Any]:
    """The model of the run with the outputs of a student, and in an MLP with its hidden layers.

    None: LAYERS of WIDTH, or more and wider ones as in the run. A model whose number of outputs no key gives stays as
    it is.

    Raises ConfigError for hidden layers of a model that has no list of sizes.

    >>> student_model({"_target_": "bdl.models.MLP", "sizes": [8, 16, 2]}, kept=2, shares=1, hidden=[32, 32])
    {'_target_': 'bdl.models.MLP', 'sizes': [8, 32, 32, 3]}
    """
    if isinstance(model.get("net"), dict):  # constants behind it: the student predicts what they were
        model = model["net"]
    if "sizes" in model:
        first, *inner, _ = model["sizes"]
        wide = [max([WIDTH, *inner])] * max(LAYERS, len(inner))
        return {**model, "sizes": [first, *(wide if hidden is None else hidden), kept + shares]}
    if hidden is not None:
        raise ConfigError(f"hidden={list(hidden)} is about an MLP, and the run has {model['_target_']}: leave it null")
    return {**model, "num_classes": kept + shares} if "num_classes" in model else model
