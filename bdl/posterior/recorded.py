"""What a run records of its network and its likelihood, compared with what `Posterior.load` is given."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from bdl.errors import BdlWarning
from bdl.forward_code import difference
from bdl.identity import architecture, identity
from bdl.likelihoods import Likelihood, in_words, likelihood_of
from bdl.posterior.samples import brief, first_difference
from bdl.snapshot import NETWORK

COMPILED = ("_orig_mod", "module")  # what torch.compile and DataParallel call the network in them


def tell_differences(target: Mapping[str, Any], net: nn.Module, whole: nn.Module, given: Likelihood | None) -> None:
    """BdlWarnings for a network or a likelihood that is not that of target.json, where it says which that is.

    net: the network of the samples. whole: the module that was given, which may hold it.
    """
    of_net = of_network(target.get("model"), net) or of_code(target.get(NETWORK), net)
    for line in filter(None, (of_part(whole, net), of_net, of_likelihood(target.get("loss"), given))):
        warnings.warn(line, BdlWarning, stacklevel=3)  # at the caller's caller


def of_part(whole: nn.Module, net: nn.Module) -> str | None:
    """That a network has layers around the sampled one, which predictions leave out; a LightningModule may hold it."""
    path = next((name for name, module in whole.named_modules() if module is net), "")
    if not path or path in COMPILED or hasattr(whole, "configure_optimizers"):
        return None
    return (
        f"the run sampled {path} of {type(whole).__name__}, a {type(net).__name__}, and predictions are those of this "
        "part alone: sample the whole, or apply the rest to the predictions"
    )


def of_network(model: Any, net: nn.Module) -> str | None:
    """Where the layers of the network differ from those of the run, whose shapes may be the same.

    Layers are compared, and what holds them only where both have one of that type: a loop of one's own may have another
    container around the same layers.
    """
    recorded, given = _modules_of(model), architecture(net)
    if recorded is None:
        return None
    there, here = _compared(recorded, given), _compared(given, recorded)
    if not (first := first_difference(there, here)):
        return None
    key = f"{first[0]}."
    path = max((path for path in {**there, **here} if key.startswith(f"{path}.")), key=len, default="")
    layers = there.get(path, {}), here.get(path, {})
    settings = layers[0].get("type") == layers[1].get("type")
    was, now = (_in_words(layer, settings) for layer in layers)
    return (
        f"the run sampled a network with {was} at {path or 'its top'}, and this one has {now}: pass the net of the run"
    )


def of_code(recorded: Any, net: nn.Module) -> str | None:
    """Where settings and code of the network differ from what `bdl.forward_code.described` has recorded."""
    if (found := difference(recorded, net)) is None:
        return None
    path, what = found
    return f"the run sampled another network: at {path or 'its top'} {what}; pass the net of the run"


def of_likelihood(loss: Any, given: Likelihood | None) -> str | None:
    """Whether a likelihood is of another kind than that with which the run was sampled, or has other settings.

    A loss of torch has no settings: a likelihood of its kind that is given may say what they should be.
    """
    recorded = likelihood_of(loss)
    if not isinstance(given, Likelihood) or not isinstance(recorded, Likelihood):
        return None
    was, now = recorded.unweighted, given.unweighted
    if type(was) is type(now):
        of_bdl = isinstance(loss, Mapping) and str(loss.get("type")).startswith("bdl.")
        if not of_bdl or identity(was) == identity(now):
            return None
        return f"the run was sampled with {was}, and {now} is given: predictions follow it; leave likelihood= out"
    return (
        f"the run was sampled with {in_words(loss)}, and {type(given).__name__} is given: its outputs mean something "
        "else; leave likelihood= out"
    )


def _modules_of(model: Any) -> dict[str, Any] | None:
    """The modules that target.json records: as `bdl.sample` does, or as the arguments of a model of bdl; else None.

    A stranger may have written the file. Only a model of bdl is built, from plain values and without memory.
    """
    import bdl

    if not isinstance(model, Mapping):
        return None
    if "_target_" not in model:
        plain = all(isinstance(layer, Mapping) and isinstance(layer.get("type"), str) for layer in model.values())
        return dict(model) if plain else None
    kind = getattr(bdl.models, str(model["_target_"]).removeprefix("bdl.models."), None)
    arguments = {name: value for name, value in model.items() if name != "_target_"}
    if not (inspect.isclass(kind) and issubclass(kind, nn.Module)):
        return None
    try:
        with torch.device("meta"):
            return architecture(kind(**arguments))
    except Exception:  # a model of another version of bdl takes other arguments
        return None


def _compared(modules: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """The modules that hold no others; and the words, such as names of functions, of those that both networks have."""
    layers = {path: dict(m) for path, m in modules.items() if not any(_holds(path, other) for other in modules)}
    shared = {
        path: {key: value for key, value in m.items() if isinstance(value, str)}
        for path, m in modules.items()
        if path not in layers and others.get(path, {}).get("type") == m["type"]
    }
    return {**shared, **layers}


def _holds(path: str, other: str) -> bool:
    return other != path and (not path or other.startswith(f"{path}."))


def _in_words(layer: Mapping[str, Any], settings: bool) -> str:
    """A layer by its type, and by its settings where these are what differs.

    >>> _in_words({"type": "torch.nn.modules.activation.ELU", "alpha": 2.0}, True), _in_words({}, False)
    ('ELU(alpha=2.0)', 'no layer')
    """
    if not layer:
        return "no layer"
    values = ", ".join(f"{key}={brief(value)}" for key, value in layer.items() if key != "type") if settings else ""
    return str(layer["type"]).rpartition(".")[2] + (f"({values})" if values else "")
