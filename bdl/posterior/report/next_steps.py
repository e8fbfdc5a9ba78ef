"""What a report says to do next: the command lines that follow from its verdict, or the lines of Python."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from typing import Any

from bdl.posterior.judge_law import COLDEST_DIRECTION
from bdl.posterior.judge_rest import is_on_its_way, lengths
from bdl.posterior.judge_target import CHAINS, OF_CHAINS
from bdl.posterior.judgements import or_nan
from bdl.posterior.verdict import Verdict

MOST_LENGTHS = 100  # lengths of the run: beyond them another sampler is the better advice
UNKNOWN = 4  # lengths of the run, where the number of samples that would do is not known
OF_WEIGHTS = ("Weighted distribution", "ESS of importance weights")  # names of judgements


def next_steps(judged: Verdict, m: Mapping[str, float], command: str, steps: int, folder: str = ""
) -> list[tuple[str, str]]:  # fmt: skip
    """What to do, in words, and the command that does it; [] without the command of the run, and outside of Python.

    Predictions that are good come first: what leads away from them is one choice, and is named as such.

    m: metrics, NaN where one is not known. steps: of the run. folder: of the run, for one that has no command.
    """
    if not command:
        return in_python(judged, m, steps, folder) if folder else []
    if judged.head.kind == "good ensemble":
        otherwise = [(f"Only to sample the posterior itself: {words[0].lower()}{words[1:]}", line)
                     for words, line in _to_the_posterior(judged, m, command)]  # fmt: skip
        return [("Use these predictions, and see that another run repeats them", another_seed(command)), *otherwise]
    if judged.outcome == "trust":
        return [("See that another run predicts the same", another_seed(command))]
    if judged.outcome == "prior does not fit":
        colder = changed(changed(command, "tune=auto"), "tune.temperature=true")
        of_t = [] if m["temperature"] < 1 else [("Read the temperature that predicts best", colder)]
        return [*of_t, ("Learn the width of the prior", changed(command, "sampler.prior.precision=learned"))]
    if judged.decisive.name == OF_CHAINS:
        return [(f"Run {CHAINS} chains", changed(command, f"chains={CHAINS}"))]
    if judged.outcome in ("more samples", "not at rest"):
        return _longer(judged, m, command, steps)
    if judged.outcome == "broken":
        return _longer(judged, m, command, steps) if is_on_its_way(or_nan(m)) else _smaller_steps(m, command)
    return _to_the_posterior(judged, m, command)


def of_an_estimator(
    judged: Verdict, steps: int, samples: int, chains: int, given: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """What one does with a fitted estimator of `bdl.sklearn`, as methods of it: another fit where that helps.

    Args:
        steps, samples, chains: of the fit; samples of each chain.
        given: settings that the user gave, such as lr, by the names of the estimator's arguments.
    """
    if judged.decisive.name == OF_CHAINS:
        return [(f"Run {CHAINS} chains", _fit_with(chains=CHAINS))]
    if _is_too_short(judged, judged.metrics) or judged.outcome == "not known" and "longer" in judged.decisive.words:
        words, total = _longer_by(judged, or_nan({"samples": samples * chains, **judged.metrics}), steps)
        new = {"steps": total}
        if judged.outcome == "more samples" and judged.needed > samples * chains:  # a longer fit keeps as many
            new["samples"] = min(math.ceil(judged.needed / chains), total // 2)
        return [(words, _fit_with(**new))]
    if judged.outcome == "prior does not fit" and "prior_std" in given:
        return [("Let the width of the prior be found", _fit_with(prior_std=None))]
    if judged.outcome == "another temperature" and "lr" in given:
        return [("Let the step size be found", _fit_with(lr=None))]
    return []


def _fit_with(**settings: Any) -> str:
    return f"set_params({', '.join(f'{name}={value!r}' for name, value in settings.items())}).fit(X, y)"


def in_python(judged: Verdict, m: Mapping[str, float], steps: int, folder: str) -> list[tuple[str, str]]:
    """What one does with the posterior of a network `net`, whose inputs are x; first a longer run where that helps."""
    longer = []
    if judged.decisive.name == OF_CHAINS:
        longer = [(f"Run {CHAINS} chains, into another folder", f"chains={CHAINS}  # of bdl.sample or bdl.ChainStack")]
    elif _is_too_short(judged, m) and steps:
        words, total = _longer_by(judged, m, steps)
        longer = [(f"{words}: the same call with more steps continues this run",
                   f"steps={total}  # of bdl.sample; max_steps of a Trainer of your own")]  # fmt: skip
    return [  # fmt: skip
        *longer,
        ("Predict new inputs", f"posterior = bdl.Posterior.load({folder!r}, net)\nprediction = posterior.predict(x)"),
        ("Score other labelled batches", "posterior.evaluate(loader).metrics()"),
        ("Keep 20 networks whose average is nearest to that of all", "posterior.thin(20, x).save('small')"),
        (
            "Let the posterior see the held-out items too, by the same call",
            f"bdl.sample(net, loss, loader_of_all_items, {folder + '-all'!r}, **arguments)",
        ),
    ]


def _is_too_short(judged: Verdict, m: Mapping[str, float]) -> bool:
    return judged.outcome in ("more samples", "not at rest") or judged.outcome == "broken" and is_on_its_way(or_nan(m))


def _longer(judged: Verdict, m: Mapping[str, float], command: str, steps: int) -> list[tuple[str, str]]:
    """A longer run. Its time is on the terminal: a page is the same whenever it is made."""
    if not steps or "budget=" in command:
        return []
    words, total = _longer_by(judged, m, steps)
    key = "trainer.max_steps" if "trainer.max_" in command else "length"
    return [(words, changed(command, f"{key}={total}"))]


def _longer_by(judged: Verdict, m: Mapping[str, float], steps: int) -> tuple[str, int]:
    """By how much, in words, and how many steps that are in all."""
    enough = judged.outcome == "more samples"  # where the chains are at rest; NaN: unknown
    share = judged.needed / m["samples"] if enough else lengths(or_nan(m))
    times = math.ceil(min(MOST_LENGTHS, max(2.0, UNKNOWN if math.isnan(share) else share)))
    return f"Sample {times} times as long", int(float(f"{times * steps:.2g}"))


def _to_the_posterior(judged: Verdict, m: Mapping[str, float], command: str) -> list[tuple[str, str]]:
    """What brings samples of another distribution closer to the posterior."""
    if judged.outcome == "ensemble over modes":
        ensemble = ("Start the chains as a deep ensemble", changed(command, "start=adamw"))
        cycles = ("Let the chains jump in cycles", changed(command, "schedule=cyclical"))
        return [cycles] if "start/members" in m else [ensemble, cycles]
    name, is_tuned = judged.decisive.name, not math.isnan(m["tune/kept/rest"])
    if judged.outcome == "another temperature":
        hot = name != COLDEST_DIRECTION  # a cold direction needs no smaller steps
        tunes_itself = not math.isnan(m["energy_error"])  # MCLMC, which follows no lr
        return [_tuned(command)] if not (is_tuned or tunes_itself) else _smaller_steps(m, command) if hot else []
    if name in OF_WEIGHTS and (plain := unweighted(command)):
        return [("Sample the posterior itself, without the weighting", plain)]
    if name == "Approximation" or m["temperature"] == 0:
        default = without(command, "sampler")
        return [] if default == command else [("Sample the posterior itself, by the default sampler", default)]
    return [] if is_tuned else [("Let bdl find the settings of the sampler", changed(command, "tune=auto"))]


def _tuned(command: str) -> tuple[str, str]:
    """The run with a step and a batch that are found; the lines of the tuning say what T they leave by direction."""
    line = changed(without(command, "sampler.lr"), "tune=auto")
    return "Let bdl find a step and a batch, and say how hot they leave the hottest direction", line


def _smaller_steps(m: Mapping[str, float], command: str) -> list[tuple[str, str]]:
    if not math.isnan(m["energy_error"]):  # of MCLMC, whose step follows from the error that it may have
        line = changed(changed(command, "sampler.dynamics.adjusted=true"), "sampler.dynamics.energy_var=0.0005")
        return [] if line == command else [("Test every step, so that its error heats nothing", line)]
    return [] if math.isnan(m["lr"]) else [("Take smaller steps", changed(command, f"sampler.lr={m['lr'] / 4:.2g}"))]


def another_seed(command: str) -> str:
    """The command with the next seed.

    >>> another_seed("bdl train seed=3")
    'bdl train seed=4'
    """
    seed = next((int(w[5:]) for w in shlex.split(command) if w.startswith("seed=") and w[5:].isdecimal()), 0)
    return changed(command, f"seed={seed + 1}")


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
    return word.lstrip("+~").partition("=")[0]
