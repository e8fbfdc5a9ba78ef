"""Baselines that change the last layer: a Gaussian over it by laplace-torch, and a temperature for its logits."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bdl.batch import Inputs, feed
from bdl.contrib.baselines.base import Baseline, Material, NamedTensors, check_outputs, split_vector, with_tensors
from bdl.engine.forward import Forward
from bdl.engine.functional import call, evaluating, watching
from bdl.errors import ConfigError
from bdl.likelihoods import CategoricalNLL, GaussianNLL, HeteroscedasticNLL, Likelihood
from bdl.likelihoods.heads import ConstantOutputs
from bdl.posterior.calibration import TemperatureScaling
from bdl.posterior.outputs import Batches, output_shape
from bdl.posterior.prediction import LabelPrediction, Prediction, prediction_of
from bdl.seeding import generator

Structure = Literal["full", "kron", "diag"]


@dataclass(frozen=True)
class LastLayerLaplace(Baseline):
    """Laplace's approximation at the trained last layer θ* (Daxberger et al. 2021); a mixture for several chains.

        N(θ*, T H^-1),        H = Σ_i J_i' Λ_i J_i + δ I

    J is the gradient of the outputs by the last layer, Λ the second derivative of -log p(y|outputs), the sum runs over
    all N training items and δ is the precision of the prior: the generalised Gauss-Newton matrix of U. All other layers
    stay as they were trained. Needs the extra `bdl[laplace]`.

    Args:
        draws: networks per chain.
        structure: the form of H: "full", or approximated by "kron" (Kronecker factors) or "diag".
        prior_precision: δ; None for that of the run's prior, "marglik" for the one of the largest marginal likelihood.
        temperature: T.

    Numbers need one std for all items, because laplace-torch knows no other: that of `GaussianNLL`, or under
    `HeteroscedasticNLL` the one learned constant of `bdl.with_constant_scale`, which stays as it was trained.

    Raises ConfigError without the package, for another likelihood, for a prior of the run that has no one precision,
    and for a network that does not end with a Linear layer.
    """

    scale = "learned"
    draws: int = 30
    structure: Structure = "full"
    prior_precision: float | Literal["marglik"] | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.structure not in ("full", "kron", "diag"):
            raise ConfigError(f"structure must be full, kron or diag, got {self.structure!r}")
        if not self.temperature > 0:
            raise ConfigError(f"temperature must be > 0, got {self.temperature!r}")
        given = self.prior_precision
        if given not in (None, "marglik") and not (type(given) in (int, float) and given > 0):  # type: ignore[operator]
            raise ConfigError(f"prior_precision must be > 0, marglik or null, got {given!r}")
        if find_spec("laplace") is None:
            raise ConfigError("LastLayerLaplace needs the package laplace-torch: pip install 'bdl[laplace]'")

    def check(self, net: nn.Module, inputs: Inputs, likelihood: Likelihood | None, val: bool) -> None:
        if not isinstance(inputs, Tensor):
            raise ConfigError("LastLayerLaplace needs networks of one input tensor: laplace-torch knows no others")
        if likelihood is not None:
            _kind_and_noise(likelihood, net)
        last_linear(without_constants(net), inputs, "LastLayerLaplace")
        with torch.no_grad(), evaluating(net):
            outputs = net(inputs)
        if outputs.ndim != 2:
            raise ConfigError(
                f"LastLayerLaplace needs outputs (n, K), and {type(net).__name__} gives {tuple(outputs.shape)}: "
                "laplace-torch knows no elements of items"
            )

    def networks(self, material: Material) -> Iterator[list[NamedTensors]]:
        net, states = material.trained.net, material.last_states()
        batches = material.batches("train", self)
        items, num_data = batches.sizes()[1], material.trained.target.get("num_data")
        if num_data not in (None, items):  # H is a sum over all items, and the prior's weight beside it depends on N
            got = f"LastLayerLaplace got {items:,} training items"
            raise ConfigError(f"{got}, and the run has N = {num_data:,}: pass all")
        layer = last_linear(without_constants(net), material.first(self), "LastLayerLaplace")
        names = parameter_names(net, without_constants(net).get_submodule(layer))
        likelihood = material.trained.likelihood(material.train)  # type: ignore[arg-type]
        samples = []
        for chain, tensors in enumerate(states):
            with warnings.catch_warnings(), torch.random.fork_rng():
                warnings.simplefilter("ignore")  # laplace-torch's own, about torch's
                fitted = self._fitted(with_tensors(net, tensors), layer, likelihood, batches, material)
                random = generator(material.trained.device, "laplace", material.seed, chain)
                samples.append(fitted.sample(self.draws, generator=random).detach())  # (draws, d)
        for draw in range(self.draws):
            yield [
                {**tensors, **split_vector(s[draw], tensors, names)} for tensors, s in zip(states, samples, strict=True)
            ]

    def _fitted(self, net: nn.Module, layer: str, likelihood: Likelihood, batches: Batches, material: Material) -> Any:
        from laplace import Laplace

        precision = self.prior_precision if isinstance(self.prior_precision, int | float) else None
        if precision is None:
            precision = 1.0 if self.prior_precision == "marglik" else prior_precision(material.trained.target)
        kind, noise = _kind_and_noise(likelihood, net)
        # In laplace-torch T tempers the likelihood alone; exp(-U/T) tempers the prior as well
        fitted: Any = Laplace(
            without_constants(net), kind, subset_of_weights="last_layer", hessian_structure=self.structure,
            last_layer_name=layer, prior_precision=precision / self.temperature, temperature=self.temperature, **noise,
        )  # fmt: skip
        fitted.fit(_Pairs(batches, columns=kind == "regression"))
        if self.prior_precision == "marglik":
            fitted.optimize_prior_precision(method="marglik")
        return fitted


def prior_precision(target: dict[str, Any]) -> float:
    """The precision of the run's prior. Raises ConfigError where it is no one number > 0."""
    prior = target.get("prior") or {}
    precision = prior.get("precision") if prior.get("type") == "bdl.Gaussian" and not prior.get("mean") else None
    if isinstance(precision, int | float) and precision > 0:
        return float(precision)
    raise ConfigError(
        f"the run's prior ({prior.get('type', 'none')}) is no Gaussian with one precision and mean 0: set "
        "baseline.prior_precision to a number, or to marglik"
    )


def _kind_and_noise(likelihood: Likelihood, net: nn.Module) -> tuple[str, dict[str, Any]]:
    """What laplace-torch calls the likelihood, and its noise at the present constants of the network."""
    if isinstance(likelihood, CategoricalNLL):
        return "classification", {}
    if isinstance(likelihood, GaussianNLL) and isinstance(likelihood.std, int | float):
        return "regression", {"sigma_noise": likelihood.std}
    if not isinstance(likelihood, HeteroscedasticNLL):
        raise ConfigError(
            f"laplace-torch has no {type(likelihood).__name__}: LastLayerLaplace takes CategoricalNLL for classes, and "
            "GaussianNLL, or HeteroscedasticNLL with loss.scale=learned, for numbers"
        )
    if (constants := _constants(net)) is None:
        raise ConfigError(
            "LastLayerLaplace takes one std for all items, and this network predicts it from the inputs: set "
            "loss.scale=learned, or use bdl.with_constant_scale"
        )
    s = constants.value.detach()
    if len(s) > 1:
        raise ConfigError(
            f"LastLayerLaplace takes one std, and there are {len(s)} targets: keep one, or use another method"
        )
    variance = likelihood.variance(torch.stack([torch.zeros_like(s), s], -1))
    return "regression", {"sigma_noise": float(variance.sqrt())}


def _constants(net: nn.Module) -> ConstantOutputs | None:
    """The constants behind a network of `with_constant_scale`."""
    last = net[-1] if isinstance(net, nn.Sequential) and len(net) else None
    return last if isinstance(last, ConstantOutputs) else None


def without_constants(net: nn.Module) -> nn.Module:
    """The network before the constants of `with_constant_scale`; the network itself where it has none."""
    return net if _constants(net) is None else net[:-1]  # type: ignore[index]


class _Pairs:
    """(x, y) batches on the device, as laplace-torch reads them."""

    def __init__(self, batches: Batches, columns: bool):
        self.batches, self.columns = batches, columns
        self.dataset = range(batches.sizes()[1])  # laplace-torch asks for its length

    def __len__(self) -> int:
        return sum(1 for _ in self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in self.batches:
            y = y.to(self.batches.device)
            yield x.to(self.batches.device), y.reshape(len(y), -1) if self.columns else y


@dataclass(frozen=True)
class ScaledPoint(Baseline):
    """The last network of every chain, with temperature scaling (Guo et al. 2017) fitted on the validation items.

        logits / T = (W / T) h + b / T,        so T goes into the last layer

    Each chain has its own T. One chain is the usual point estimate, several are a deep ensemble of scaled members.

    Raises ConfigError without validation items, for predictions of numbers, and for a network that does not end with a
    Linear layer.
    """

    draws = 1
    temperature = 0.0

    def check(self, net: nn.Module, inputs: Inputs, likelihood: Likelihood | None, val: bool) -> None:
        if not val:
            raise ConfigError(f"ScaledPoint needs val data: {self.remedies['val']}")
        if likelihood is not None and likelihood.outputs == "values":
            raise ConfigError("ScaledPoint scales probabilities, and this run predicts numbers: use another method")
        last_linear(net, inputs, "ScaledPoint")

    def networks(self, material: Material) -> Iterator[list[NamedTensors]]:
        net, trained = material.trained.net, material.trained
        batches = material.batches("val", self)
        likelihood = trained.likelihood(material.val)  # type: ignore[arg-type]
        inputs = material.first(self, "val")
        self.check(net, inputs, likelihood, True)
        layer = last_linear(net, inputs, "ScaledPoint")
        names, labels = parameter_names(net, net.get_submodule(layer)), batches.labels(len(output_shape(net, batches)))
        forward, scaled = Forward(net), []
        for tensors in material.last_states():
            with torch.no_grad():
                outputs = batches.rows(forward, {k: v.unsqueeze(0) for k, v in tensors.items()}, likelihood)
            prediction = prediction_of(iter([(outputs, torch.ones(1, dtype=torch.float64))]), likelihood)
            assert isinstance(prediction, Prediction | LabelPrediction)
            T = TemperatureScaling.fit(prediction, labels).temperature
            scaled.append({**tensors, **{name: tensors[name] / T for name in names}})
            with torch.no_grad(), evaluating(net):
                wanted = call(net, tensors, inputs) / T
            check_outputs(net, scaled[-1], inputs, wanted, "the last layer of this network is used more than once")
        yield scaled


def last_linear(net: nn.Module, inputs: Inputs, who: str) -> str:
    """The name of the Linear layer whose output is that of the network. Raises ConfigError if there is none."""
    made: list[tuple[str, Any]] = []
    linear = {name: module for name, module in net.named_modules() if isinstance(module, nn.Linear)}
    with watching(linear, lambda name, _, out: made.append((name, out))), torch.no_grad(), evaluating(net):
        outputs = feed(net, inputs)
    if not made or made[-1][1] is not outputs:
        raise ConfigError(
            f"{who} needs a network that ends with a Linear layer, and {type(net).__name__} does not: use another "
            "method"
        )
    return made[-1][0]


def parameter_names(net: nn.Module, layer: nn.Module) -> list[str]:
    """The names of a layer's weight and bias among the network's, under which samples hold them."""
    of_id = {id(p): name for name, p in net.named_parameters()}
    return [of_id[id(p)] for p in layer.parameters(recurse=False)]
