"""What a report says to do next: the command lines that follow from its verdict."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping

from bdl.posterior.verdict import Verdict

MOST = 100  # lengths of the run: beyond them another sampler is the better advice
UNKNOWN = 4  # lengths of the run, where the number of samples that would do is not known
OF_WEIGHTS = ("Weighted distribution", "ESS of importance weights")  # names of judgements


def next_steps(judged: Verdict, m: Mapping[str, float], command: str, steps: int) -> list[tuple[str, str]]:
    """What to do, in words, and the command that does it; none without the command of the run.

    m: metrics, NaN where one is not known. steps: of the run.
    """
    if not command:
        return []
    if judged.outcome == "more samples" and steps and "budget=" not in command:
        share = judged.needed / m["samples"]  # NaN where unknown
        times = math.ceil(min(MOST, max(2.0, UNKNOWN if math.isnan(share) else share)))
        key = "trainer.max_steps" if "trainer.max_" in command else "length"
        return [(f"Sample {times} times as long", changed(command, f"{key}={int(float(f'{times * steps:.2g}'))}"))]
    if judged.outcome == "not mixing":
        ensemble = ("Start the chains as a deep ensemble", changed(command, "start=adamw"))
        cycles = ("Let the chains jump in cycles", changed(command, "schedule=cyclical"))
        return [cycles] if "start/members" in m else [ensemble, cycles]
    if judged.outcome in ("no posterior", "not known"):
        name = judged.decisive.name
        if name in OF_WEIGHTS and (plain := unweighted(command)):
            return [("Sample the posterior itself, without the weighting", plain)]
        if name == "Approximation" or m["temperature"] == 0:
            default = without(command, "sampler")
            return [] if default == command else [("Sample the posterior itself, by the default sampler", default)]
        is_tuned = not math.isnan(m["tune/kept/rest"])
        return [] if is_tuned else [("Let bdl find the settings of the sampler", changed(command, "tune=auto"))]
    if judged.outcome == "broken" and not math.isnan(m["lr"]):
        return [("Take smaller steps", changed(command, f"sampler.lr={m['lr'] / 4:.2g}"))]
    if judged.outcome in ("trust", "ensemble over modes"):
        seed = next((int(w[5:]) for w in shlex.split(command) if w.startswith("seed=") and w[5:].isdecimal()), 0)
        return [("See that another run predicts the same", changed(command, f"seed={seed + 1}"))]
    return []


def unweighted(command: str) -> str | None:
    """The command with the plain form of its sampler; None where it names no weighted one.

    >>> unweighted("bdl train sampler=awsghmc sampler.weighting.zeta=2 seed=1")
    'bdl train seed=1 sampler=sghmc'
    """
    sampler = next((word for word in shlex.split(command) if word.startswith("sampler=aw")), None)
    return sampler and changed(without(command, "sampler.weighting"), sampler.replace("=aw", "="))


def without(command: str, section: str) -> str:
    """The command without its overrides of a section.

    >>> without("bdl train sampler=swag sampler.lr=0.1 seed=1", "sampler")
    'bdl train seed=1'
    """
    words = shlex.split(command)
    return shlex.join(word for word in words if not f"{_key(word)}.".startswith(f"{section}."))


def changed(command: str, word: str) -> str:
    """The command with an override, in the place of what it says about the same key.

    >>> changed("bdl train length=10 seed=1", "length=40")
    'bdl train seed=1 length=40'
    """
    others = [other for other in shlex.split(command) if _key(other) != _key(word)]
    return shlex.join([*others, word])


def _key(word: str) -> str:
    """The key of an override."""
    return word.lstrip("+~").partition("=")[0]
