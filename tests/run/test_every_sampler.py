"""Every name in conf/sampler with nothing else set, on four kinds of data: a verdict, or a line that says why not.

Without --all-faults every third name runs on one kind, the kinds in turn, besides the cells of the default suite.
"""

import pytest
from composing import CONF
from four_kinds import KINDS, write_data
from hydra.core.global_hydra import GlobalHydra
from repeats import slow_where
from running import asked

from bdl.errors import BdlError
from bdl.posterior.judgements import OUTCOMES
from bdl.run import train
from bdl.run.processes import SINGLE
from bdl.run.records import read_metrics

NAMES = sorted(path.stem for path in (CONF / "sampler").glob("*.yaml") if path.stem != "default")
SHORT = ("trainer=debug", "logger=none", "processes=1")
STEPS = 60
REFUSED = {  # (name, kind) of what cannot be done: words of the line that says why
    ("dropout", "text"): "cannot be written as weights",
    ("scaled", "numbers"): "scales probabilities, and this run predicts numbers",
    ("laplace", "text"): "laplace-torch knows no elements of items",
}
DEFAULT = {("csgld", "numbers"), ("hmc", "classes"), ("laplace", "numbers"), ("sghmc", "text"), ("mala", "images")}
CELLS = [(name, kind) for name in NAMES for kind in KINDS]
IN_TURN = {(name, list(KINDS)[k % len(KINDS)]) for k, name in enumerate(NAMES[::3])}
IN_TURN |= {("metropolis", "numbers")}  # chains that hardly move, which have no stacking weights


@pytest.mark.parametrize(("name", "kind"), slow_where(lambda name, kind: (name, kind) not in DEFAULT, CELLS))
def test_a_sampler_ends_in_a_verdict_or_says_why_it_cannot(tmp_path, name, kind, all_faults):
    if not (all_faults or (name, kind) in DEFAULT | IN_TURN):
        pytest.skip("other cells stand for it without --all-faults")
    request = asked(*write_data(tmp_path, kind), f"sampler={name}", *SHORT, f"run_dir={tmp_path / 'run'}", steps=STEPS)
    try:
        train.carry_out(request, SINGLE)
    except BdlError as error:
        reason = REFUSED.get((name, kind))
        assert reason is not None and reason in str(error) and "\n" not in str(error), error
        return
    finally:
        GlobalHydra.instance().clear()
    assert (name, kind) not in REFUSED
    metrics = read_metrics(tmp_path / "run" / "metrics.json")
    assert OUTCOMES[int(metrics["verdict/outcome"])] != "broken"
