"""Tables and the picture of the experiment `cnn`."""

from collections.abc import Iterable, Mapping

import torch
from matplotlib.figure import Figure

from literature.cifar import listed
from literature.cnn_scores import SCORES, Cells, Outcome, Run, difference
from literature.distances import with_error
from literature.experiment import Table
from literature.figures import BLUE, GREEN, ORANGE, RED, canvas, label

DIGITS = {"accuracy": 2, "nll": 3, "ece": 2}
COLOURS = (BLUE, ORANGE, GREEN, RED)
BASELINE = "cnn_sgd"
Names = Mapping[str, str]


def scores_table(cells: Cells, names: Names, missing: list[str]) -> Table:
    header = ["method", *(f"one sample, {s}" for s in ("accuracy", "NLL", "ECE")),
              *(f"average, {s}" for s in ("accuracy", "NLL", "ECE")),
              "samples", "epochs", "seeds", "device"]  # fmt: skip
    rows = []
    for cell, runs in cells.items():
        ends = [[r.history.states[s][-1] for r in runs] for s in SCORES]
        ends += [[r.history.averages[s][-1] for r in runs] for s in SCORES]
        shown = [over_seeds(values, DIGITS[s]) for values, s in zip(ends, 2 * SCORES, strict=True)]
        samples = listed(len(r.history.steps) for r in runs)
        about = (listed(getattr(r, key) for r in runs) for key in ("epochs", "seed", "device"))
        rows.append([names[cell], *shown, samples, *about])
    note = (
        "Accuracy and ECE (15 bins) in %, NLL in nats, on the test images. The post shows curves without numbers and "
        "no average. One sample: the last state. Average: the mean of the class probabilities of all kept states, for "
        "SGD those of its iterates in the second half of the run. T = 1 wherever noise is injected; the prior is "
        "N(0, 1). The settings are those of conf/experiment/cifar10. Mean ± standard error where there are several "
        "seeds."
    )
    if missing:
        note += f" Not run yet: {', '.join(missing)}."
    return Table("One sample, and the average of all", header, rows, note)


def margins_table(cells: Cells, names: Names) -> Table:
    """What each average gains over its own last state, over SGD's, and over the average of SGD's iterates."""
    header = ["average of", "compared with", "accuracy (points)", "NLL (nats)"]
    rows = []
    for cell, runs in cells.items():
        rows += margin_rows(names[cell], "its own last state", [(average(r), last(r)) for r in runs])
        if cell != BASELINE:
            paired = [(r, s) for r in runs for s in cells[BASELINE] if r.seed == s.seed]
            rows += margin_rows(names[cell], "SGD's last state", [(average(r), last(s)) for r, s in paired])
            rows += margin_rows(names[cell], "the average of SGD's iterates",
                                [(average(r), average(s)) for r, s in paired])  # fmt: skip
    note = (
        "Positive accuracy and negative NLL: the average is better. ± is the standard error of the difference over the "
        "test images, which both predict; it does not include that between seeds."
    )
    return Table("What the averages gain", header, rows, note)


def margin_rows(name: str, baseline: str, pairs: list[tuple[Outcome, Outcome]]) -> list[list[str]]:
    if not pairs:
        return []
    gain = difference(pairs)
    shown = [f"{gain[s][0]:+.{DIGITS[s]}f} ± {gain[s][1]:.{DIGITS[s]}f}" for s in ("accuracy", "nll")]
    return [[name, baseline, *shown]]


def cycles_table(cells: Cells, names: Names) -> Table:
    header = ["method", "cycles", "last state, accuracy", "NLL", "average of this cycle, accuracy", "NLL",
              "average of all so far, accuracy", "NLL", "ECE"]  # fmt: skip
    rows = []
    for cell, runs in cells.items():
        count = min((len(set(r.history.cycles)) for r in runs), default=1)
        for k in range(count) if count > 1 else ():
            ends = [end_of_cycle(r, k) for r in runs]
            columns = [[r.history.states[s][i] for r, i in zip(runs, ends, strict=True)] for s in ("accuracy", "nll")]
            columns += [[r.history.cycle_averages[s][k] for r in runs] for s in ("accuracy", "nll")]
            columns += [[r.history.averages[s][i] for r, i in zip(runs, ends, strict=True)] for s in SCORES]
            digits = (2, 3, 2, 3, 2, 3, 2)
            rows.append([names[cell], str(k + 1), *map(over_seeds, columns, digits)])
    return Table("Over the cycles", header, rows)


def end_of_cycle(run: Run, k: int) -> int:
    """Index of the last state of cycle number k, counted from 0, among the kept states."""
    cycles = run.history.cycles
    number = sorted(set(cycles))[k]
    return len(cycles) - 1 - cycles[::-1].index(number)


def last(run: Run) -> Outcome:
    assert run.history.last is not None
    return run.history.last


def average(run: Run) -> Outcome:
    assert run.history.average is not None
    return run.history.average


def over_seeds(values: Iterable[float], digits: int) -> str:
    scores = torch.tensor(list(values))
    return with_error(scores, digits) if len(scores) else "–"


def draw(cells: Cells, names: Names) -> Figure:
    """Scores of the first run of each cell against its epoch."""
    figure, axes = canvas("Each kept state (thin), and the average of all so far (thick)", 1, 2, width=5.0, height=3.4)
    for (cell, runs), colour in zip(cells.items(), COLOURS, strict=True):
        if not runs:
            continue
        history = runs[0].history
        epochs = [step / runs[0].steps_per_epoch for step in history.steps]
        for ax, score in zip(axes[0], ("accuracy", "nll"), strict=True):
            for cycle in sorted(set(history.cycles)):  # nothing is kept between cycles, so no line joins them
                kept = [i for i, c in enumerate(history.cycles) if c == cycle]
                x, y = ([values[i] for i in kept] for values in (epochs, history.states[score]))
                ax.plot(x, y, color=colour, lw=0.8, alpha=0.6)
            ax.plot(epochs, history.averages[score], color=colour, lw=2.2, label=names[cell])
    label(axes[0, 0], "test accuracy (%)", "epoch")
    label(axes[0, 1], "test NLL (nats)", "epoch")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure
