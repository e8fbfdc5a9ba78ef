"""Measures one cell in a process of its own: python cell.py TABLE METHOD SEED CORE-SECONDS [FOLDER]."""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from tabular.methods import METHODS, predicted
from tabular.scores import Law, scores_of_classes, scores_of_numbers
from tabular.sources import fold_of, sources_of


def measure(table: str, method: str, seed: int, limit: int, folder: Path | None = None) -> dict[str, Any]:
    """Scores, and core-seconds of fit and predictions; the system ends this process when it has taken the limit."""
    fold = fold_of(sources_of(folder)[table], seed)
    import_module(METHODS[method].library)
    used = math.ceil(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + limit, used + limit + 5))
    began = time.process_time()
    said, scored = predicted(method, fold, seed)
    cost = {"core_seconds": round(time.process_time() - began, 2)}
    if isinstance(said, Law):
        return scores_of_numbers(said, scored.y_test, float(scored.y.std())) | cost
    return scores_of_classes(said, scored.y_test) | cost


if __name__ == "__main__":
    name, method, seed, limit, *folder = sys.argv[1:]
    print(json.dumps(measure(name, method, int(seed), int(limit), *map(Path, folder))))
