"""Measures one cell in a process of its own: python cell.py TABLE METHOD SEED LIMIT BUDGET [FOLDER]."""

import json
import math
import resource
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from tabular.budget import Clock
from tabular.methods import METHODS, predicted
from tabular.scores import Law, scores_of_classes, scores_of_numbers
from tabular.sources import fold_of, sources_of


def measure(
    table: str, method: str, seed: int, limit: int, budget: float, folder: Path | None = None
) -> dict[str, Any]:
    """Scores, and core-seconds of fit and predictions; the system ends this process when it has taken the limit.

    budget: core-seconds of the fit; 0 for the method's own defaults.
    """
    fold = fold_of(sources_of(folder)[table], seed)
    import_module(METHODS[method].library)
    used = math.ceil(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + limit, used + limit + 5))
    clock = Clock(budget)
    said, scored = predicted(method, fold, seed, clock if budget else None)
    cost = {"core_seconds": round(budget - clock.left, 2)} | clock.told
    if isinstance(said, Law):
        return scores_of_numbers(said, scored.y_test, float(scored.y.std())) | cost
    return scores_of_classes(said, scored.y_test) | cost


if __name__ == "__main__":
    name, method, seed, limit, budget, *folder = sys.argv[1:]
    print(json.dumps(measure(name, method, int(seed), int(limit), float(budget), *map(Path, folder))))
