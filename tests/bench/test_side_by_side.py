"""side_by_side.py: validation rows choose the settings of a method, and what was measured before stays."""

from benchmarks import side_by_side as bench


def test_every_method_has_as_many_trials_and_the_best_one_is_run(monkeypatch):
    calls = []

    def measure(overrides, seed, split="test"):
        calls.append((list(overrides), seed, split))
        lr = next(float(each.split("=")[1]) for each in overrides if each.startswith("sampler.lr="))
        scores = {"nll": abs(lr - 0.02) + 0.01 * seed, "accuracy": 0.9 - 0.01 * seed}
        return {"seed": seed, "bma": scores, "core_seconds": 10.0}

    monkeypatch.setattr(bench, "measure", measure)
    assert {len(trials) for method in bench.METHODS.values() for trials in method.trials.values()} == {3}
    assert all(set(method.trials) == set(bench.DATA) for method in bench.METHODS.values())
    cell = {"trials": [], "runs": []}
    assert len(list(bench.work("landsat", bench.METHODS["SWAG"], cell, [0, 1]))) == 5
    assert all(split == "val" and "data.val_fraction=0.25" in overrides for overrides, _, split in calls[:3])
    assert all(split == "test" and overrides[-1] == "sampler.lr=0.02" for overrides, _, split in calls[3:])
    assert [run["seed"] for run in cell["runs"]] == [0, 1] and cell["overrides"][-1] == "sampler.lr=0.02"
    assert len(list(bench.work("landsat", bench.METHODS["SWAG"], cell, [0, 1, 2]))) == 1  # the seed that is missing
    record = {"bdl": "0", "cores": 2, "device": "a CPU", "date": "2026-01-02", "data": {"landsat": {"SWAG": cell}}}
    row = bench.table(record).splitlines()[-1]
    assert row == "| SWAG | 11.000 ± 0.577 | 0.0100 ± 0.0058 | 10 | 3 | `sampler.lr=0.02` |"
