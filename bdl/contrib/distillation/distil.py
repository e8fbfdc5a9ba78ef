"""Distillation: one network trained on the predictions of an average over many (Korattikara et al. 2015)."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bdl.batch import Reader, count_items, joined, rows_of
from bdl.contrib.distillation.scores import distances, scored, uncertainties
from bdl.contrib.distillation.student import ClassOutputs, LabelOutputs, StudentOutputs, ValueOutputs, outputs_for
from bdl.contrib.distillation.training import Distillation, parts_of, student_outputs
from bdl.disk.files import write_atomically
from bdl.display import Shown, count_of
from bdl.engine.functional import evaluating
from bdl.errors import ConfigError
from bdl.likelihoods import Likelihood
from bdl.posterior.inputs import AsTensors, floating_dtype
from bdl.posterior.outputs import Batches, Data, Read, output_shape
from bdl.posterior.predict import Posterior
from bdl.posterior.prediction import AnyPrediction


@dataclass(frozen=True, repr=False)
class Distilled(Shown):
    """A network that says in one pass what the average over a posterior says, and what was lost.

    `net` is an ordinary module in eval mode. `save` writes its weights with the scores, and `load` reads them.

    Attributes:
        net: the student.
        outputs: what its outputs mean.
        scores: `held_out/divergence` on the items that it was not trained on, in nats an item; and for test items
            `teacher/nll`, `student/nll` and so on, and `distance/...` between the two.
        step: of the training, whose weights it has.
        networks: in the average that it was trained on.
    """

    net: nn.Module
    outputs: StudentOutputs
    scores: Mapping[str, float]
    step: int
    networks: int
    read: Read

    def shown(self) -> tuple[str, Mapping[str, str]]:
        kept = "with" if self.outputs.shares else "without"
        lines = {"outputs": f"{self.outputs.width}, {kept} the epistemic share", "step": f"{self.step:,}"}
        lines |= {name: f"{value:.4g}" for name, value in self.scores.items()}
        return f"Distilled: {type(self.net).__name__} in place of {count_of(self.networks, 'network')}", lines

    def predict(self, data: Data) -> AnyPrediction:
        """The prediction for x (n, ...), or for a loader, as `Posterior.predict` gives it.

        Its standard deviations of probabilities are NaN, and so are its parts of the uncertainty if the network has no
        outputs for them.
        """
        device = next((p.device for p in self.net.parameters()), torch.device("cpu"))
        batches = Batches(AsTensors(self.net, [])(data), device, self.read, floating_dtype(self.net))
        return student_prediction(self.net, self.outputs, batches)

    def save(self, path: str | Path, **more: Any) -> None:
        """Write the weights as `state_dict`, and the other fields; `torch.load(path, weights_only=True)` reads them.

        more: plain values that the file holds too. Raises StoreError if the disk is full or not writable.
        """
        file = io.BytesIO()
        kind = {"type": type(self.outputs).__name__, **asdict(self.outputs)}
        fields = {"outputs": kind, "scores": dict(self.scores), "step": self.step, "networks": self.networks}
        torch.save({"state_dict": self.net.state_dict(), **fields, **more}, file)
        write_atomically(Path(path), file.getvalue())

    @classmethod
    def load(cls, path: str | Path, net: nn.Module) -> Distilled:
        """What `save` wrote, for the same architecture, which gets the weights of the file.

        Raises ConfigError for a file of another kind, or of another network.
        """
        try:
            saved = torch.load(path, map_location="cpu", weights_only=True)
            kind = dict(saved["outputs"])
            outputs = {c.__name__: c for c in (ClassOutputs, LabelOutputs, ValueOutputs)}[kind.pop("type")](**kind)
            net.load_state_dict(saved["state_dict"])
        except Exception as error:  # the parsers may raise anything
            raise ConfigError(
                f"{path} holds no student of this network ({str(error).splitlines()[0]}): give the network that was "
                "distilled"
            ) from error
        return cls(net.eval(), outputs, saved["scores"], saved["step"], saved["networks"], Reader(net))

    def compared(self, teacher: AnyPrediction, likelihood: Likelihood, batches: Batches) -> Distilled:
        """The same student, with the scores of both on labelled batches, and their distances."""
        student = student_prediction(self.net, self.outputs, batches)
        y = batches.labels(len(output_shape(self.net, batches)))
        scores = dict(self.scores)
        for name, one in {"teacher": teacher, "student": student}.items():
            of_one = scored(one, likelihood, y) | uncertainties(one)
            scores |= {f"{name}/{key}": value for key, value in of_one.items()}
        scores |= {f"distance/{key}": value for key, value in distances(teacher, student).items()}
        return replace(self, scores=scores)


def distil(
    posterior: Posterior[Any],
    net: nn.Module,
    data: Data,
    *,
    test: Iterable[Any] | None = None,
    settings: Distillation | None = None,
) -> Distilled:
    """`Posterior.distil`: one network, trained on the predictions of the average over all samples, and what it loses.

    The number of its outputs says what it keeps. For K classes there are K logits, for k labels k logits, for k
    numbers k means and k log variances. One more output for classes, or k more, are logits of the share of the
    uncertainty that is epistemic; the student then splits the uncertainty as the average does.

    The student is right where `data` are and between them, so add inputs without labels if there are any. All
    inputs are in memory together.

    Args:
        posterior: whose average the student learns.
        net: the student's architecture and the weights at which it begins. It is copied, and may be smaller.
        data: x (n, ...), or a loader. Labels are not used.
        test: a loader of (x, y) batches, on which average and student are compared.
        settings: of the training.

    Raises ConfigError for a number of outputs that does not fit, and for counts, whose average has no simple law.
    """
    batches, student = posterior.batches(data), copy.deepcopy(net).to(posterior.device)
    likelihood, settings = posterior.likelihood(batches), settings or Distillation()
    found = distilled(student, posterior.net, posterior.predicted, likelihood, batches, settings, posterior.samples)
    if test is None:
        return found
    batches = posterior.batches(test)
    return found.compared(posterior.predicted(batches), likelihood, batches)


def distilled(
    student: nn.Module,
    net: nn.Module,
    average: Callable[[Batches], AnyPrediction],
    likelihood: Likelihood,
    batches: Batches,
    settings: Distillation,
    networks: int,
) -> Distilled:
    """The student, trained in place on what an average over so many networks like `net` predicts for the batches."""
    outputs = outputs_for(likelihood, output_shape(net, batches), output_shape(student, batches))
    shown, held_out = settings.lessons(joined([inputs for inputs, _ in batches]))
    moved = batches.moved(shown)
    in_parts = [rows_of(moved, part) for part in parts_of(count_items(moved))]
    teacher = average(Batches(in_parts, batches.device, lambda inputs: (inputs, None)))
    lesson = outputs.lesson(teacher).to(batches.device)
    step, divergence = settings.train(student, moved, lesson, outputs, held_out)
    return Distilled(student, outputs, {"held_out/divergence": divergence}, step, networks, batches.read)


@torch.no_grad()
def student_prediction(net: nn.Module, outputs: StudentOutputs, batches: Batches) -> AnyPrediction:
    with evaluating(net):
        each = [student_outputs(net, batches.moved(inputs), outputs).float().cpu() for inputs, _ in batches]
    return outputs.prediction(torch.cat(each))
