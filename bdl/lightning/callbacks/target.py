"""What `samples/target.json` and `samples/weighting-<stack>.safetensors` say about the sampled law."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor

from bdl.identity import identity
from bdl.likelihoods import outputs_of
from bdl.samplers.sampler import Sampler
from bdl.samplers.weighting.histogram import Histogram, covered


def describe_target(sampler: Sampler, module: L.LightningModule, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """What must be equal for runs to be merged into one posterior, as JSON values, and how to read the outputs.

    tensors: the stacked tensors (C, ...) of a sample. A weighting's identity is its type and zeta.
    """
    loss = getattr(module, "loss", None)
    return {
        "num_data": sampler.num_data,
        "prior": sampler.prior_identity,
        "loss": identity(loss),
        "outputs": outputs_of(loss),
        "clip": identity(sampler.clip),
        "weighting": sampler.weighting.identity(),
        "injects_noise": sampler.dynamics.noisy,
        "caveat": sampler.dynamics.caveat,
        "shapes": {k: list(v.shape[1:]) for k, v in tensors.items()},
    }


def describe_weighting(sampler: Sampler, histogram: Histogram) -> tuple[dict[str, Tensor], dict[str, str]]:
    """psi as tensors, with one row per chain or one row for all, and the words that tell how psi was fitted.

    Energies are in nats, also where the weighting reads U/T: then at the present T.
    """
    h, weighting, group = histogram, sampler.weighting, sampler.param_groups[0]
    rows, zeta = len(h.psi), float(group["zeta"])
    temperature = torch.as_tensor(group["temperature"], dtype=torch.float64).cpu().expand(rows)
    in_temperatures = getattr(weighting, "units", "nats") == "temperature"
    unit = temperature.to(h.psi) if in_temperatures else torch.ones_like(h.psi[:, 0])
    tensors = {
        "edges": h.all_edges() * unit[:, None],
        "log_psi": h.log_psi,
        "visits": h.visits,
        "covered": covered(h.psi, zeta),
        "zeta": torch.full((rows,), zeta, dtype=torch.float64),
        "temperature": temperature,
        "recent_energies": h.window[: min(h.seen, len(h.window))] * unit,
    }
    return tensors, {"energy": weighting.energy, "weighting": type(weighting).__name__}
