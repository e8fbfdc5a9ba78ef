"""What a weighting has learnt along a stack of chains: as tensors for a store, and in words."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bdl.samplers.dynamics.base import Scalar
from bdl.samplers.settings import StepSettings
from bdl.samplers.weighting.partition import batch_error
from bdl.samplers.weighting.reweighting import Reweighting


def described(
    reweighting: Reweighting, zeta: float, temperature: Scalar
) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """psi as tensors, with one row per chain or one row for all, and the words that tell how psi was fitted.

    Energies are in nats, also where the weighting reads U/T: then at that temperature T. Chains that share psi have
    a row each where their temperatures differ. None without psi.
    """
    h, weighting = reweighting.histogram, reweighting.weighting
    if h is None:
        return None
    t = torch.as_tensor(temperature, dtype=torch.float64).cpu().reshape(-1)
    t = t[:1] if bool((t == t[0]).all()) else t
    rows = max(len(h.psi), len(t))
    t = t.expand(rows)
    unit = t.to(h.psi) if reweighting.in_temperatures else h.psi.new_ones(rows)
    depth, error = weighting.depth(h, zeta)
    tensors = {
        "edges": h.all_edges() * unit[:, None],
        "log_psi": h.log_psi.expand(rows, -1),
        "visits": h.visits.expand(rows, -1),
        "depth": depth.expand(rows),
        "depth_error": error.expand(rows),
        "zeta": torch.full((rows,), zeta, dtype=torch.float64),
        "temperature": t,
        "target": t if weighting.target is None else torch.full_like(t, weighting.target),
        "recent_energies": h.window[: min(h.seen, len(h.window))] * unit,
    }
    return tensors, {"energy": weighting.energy, "weighting": type(weighting).__name__}


def explained(reweighting: Reweighting, now: StepSettings) -> list[str]:
    """Lines on the bins: where they lie, how deep they reach, and how they compare with the noise of an energy."""
    h = reweighting.histogram
    if h is None or h.edges is None:
        return []
    unit = "T" if reweighting.in_temperatures else "nats"
    low, high = float(h.edges[:, 0].mean()), float(h.edges[:, -1].mean())
    depth, error = (float(each.nanmean()) for each in reweighting.weighting.depth(h, now.zeta))
    reached = "" if math.isnan(error) else f"; the energies lie {depth:,.0f} ± {error:,.0f} nats of log G below the top"
    lines = [f"energy bins: {h.bins} from {low:.4g} to {high:.4g} {unit}{reached}"]
    if not math.isnan(error := batch_error(h)):
        width = (high - low) / h.bins
        lines.append(f"energy noise: {error:.3g} {unit} from one step to the next, in bins of {width:.3g}")
    return lines
