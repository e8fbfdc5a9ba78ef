"""Tests of `bdl.run.run_data`: a run reads its table once, whatever processes carry its stacks."""

import multiprocessing
import os
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from composing import compose
from repeats import slow_where
from running import samples

from bdl.data import LandsatDataModule
from bdl.errors import BdlWarning, ConfigError, StoreError
from bdl.run import train
from bdl.run.config import TABLE
from bdl.run.launch import launch
from bdl.run.machine import keep_freed_memory
from bdl.run.run_data import RunData
from bdl.run.section import Section

FORK = ["fork"] if sys.platform.startswith("linux") else []


def write_table(path: Path, rows: int = 90) -> Path:
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(rows, 3)), columns=["a", "b", "c"])
    frame["town"] = random.choice(["Aachen", "Bonn"], rows)
    frame["y"] = frame["a"] - 2 * frame["b"] + 0.1 * random.normal(size=rows)
    frame.loc[:4, "y"] = np.nan  # left out, with a warning
    frame.to_csv(path, index=False)
    return path


def section(path: Path, **arguments: object) -> Section:
    about = {"_target_": TABLE, "path": str(path), "target": "y", "test_fraction": 0.2, "chains": 2, "seed": 3}
    return Section(about | arguments)


def facts(section: Section, data: RunData) -> list[object]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BdlWarning)
        module = data.build(section)
    batch = [tensor.tolist() for tensor in next(iter(module.train_dataloader()))]
    test = [[tensor.tolist() for tensor in each] for each in module.test_dataloader()]
    return [batch, test, module.identity(), module.preprocessing(), module.overview, module.batch_size, module.num_data]


@pytest.mark.parametrize("rows", [{}, {"val_fraction": 0.2}, {"all_rows": True}])
def test_the_rows_that_were_read_give_the_data_of_each_stack(tmp_path, rows):
    path = write_table(tmp_path / "table.csv")
    data = RunData(warns=False)
    for batches in ({}, {"stack": 1, "batch_size": 7}, {"chains": None, "batch_size": None, "replacement": True}):
        expected = facts(section(path, **rows, **batches), RunData())
        assert facts(section(path, **rows, **batches), data) == expected
    path.unlink()
    assert facts(section(path, **rows, stack=5), data)
    with pytest.raises(ConfigError, match="is not there"):  # other rows are read
        data.build(section(path, **rows, test_fraction=0.5))


def test_the_warnings_about_a_table_come_once(tmp_path):
    path = write_table(tmp_path / "table.csv")
    for warns in (True, False):
        data = RunData(warns)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for stack in range(3):
                data.build(section(path, stack=stack))
        assert ["the target y is missing in 5 of 90 rows" in str(w.message) for w in seen] == [True] * warns


def test_other_data_are_built_for_each_stack():
    data, landsat = RunData(), Section({"_target_": "bdl.data.LandsatDataModule", "batch_size": 10})
    assert data.read(landsat) is None
    first, second = data.build(landsat), data.build(landsat)
    assert isinstance(first, LandsatDataModule) and first is not second


def in_new_process(folder: Path, of_stack: Section, data: RunData) -> None:
    (folder / "facts").write_text(repr(facts(of_stack, data)))
    module = data.build(of_stack)
    module.tensors("train")[0].zero_()  # a copy of the page is written


@pytest.mark.parametrize("start", slow_where("spawn".__eq__, [*FORK, "spawn"]))  # a new interpreter
def test_a_new_process_has_the_rows_of_a_table_that_is_gone(tmp_path, start):
    path = write_table(tmp_path / "table.csv")
    data, of_stack = RunData(), section(path, val_fraction=0.0, batch_size=8)
    expected = facts(of_stack, data)
    path.unlink()
    with data.handed_over(start):
        launch(1, in_new_process, tmp_path, of_stack, data, start=start)
    assert (tmp_path / "facts").read_text() == repr(expected)
    assert facts(of_stack, data) == expected


def test_a_spawned_process_unpickles_rows_of_table_that_is_gone(tmp_path):
    path = write_table(tmp_path / "table.csv")
    data, of_stack = RunData(), section(path, val_fraction=0.0, batch_size=8)
    expected = facts(of_stack, data)
    path.unlink()
    with data.handed_over("spawn"):
        handed = pickle.loads(pickle.dumps(data))
        assert facts(of_stack, handed) == expected
        handed.build(of_stack).tensors("train")[0].zero_()  # a copy of the page is written
        assert facts(of_stack, pickle.loads(pickle.dumps(data))) == facts(of_stack, data) == expected


def test_rows_for_which_there_is_no_place_on_disk_give_one_line(tmp_path, monkeypatch):
    data = RunData(warns=False)
    data.read(section(write_table(tmp_path / "table.csv")))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(StoreError, match="missing"), data.handed_over("spawn"):
        raise AssertionError("handed over")


def test_a_run_reads_its_table_once_on_one_process_and_on_two(tmp_path, monkeypatch, capfd):
    """The table is removed after tuning, or on two processes before it. The samples are those of two single stacks."""
    table = tmp_path / "table.csv"
    about = [
        f"data.path={table}", "data=csv", "data.target=y", "logger=none", "chains=4", "length=60", "~start",
        "model.hidden=[4]", "sampler=sghmc", "sampler.prior.precision=1", "sampler.dynamics.friction=0.1",
        "collect.keep.burn_in=20", "collect.keep.every=10", "data.batch_size=10", "trainer=cpu", "stacks=2",
    ]  # fmt: skip
    monkeypatch.setattr(train, "start_by", lambda accelerator: "fork")  # other tests left threads, which need spawn
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: os.write(2, f"{message}\n".encode()))
    warnings.simplefilter("always", BdlWarning)
    write_table(table)
    train.train(compose(*about, f"run_dir={tmp_path / 'again'}"))
    for processes, name in ((1, "run"), (2, "tuned")):
        write_table(table)
        capfd.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(train, name, without(table, getattr(train, name)))  # it needs the rows
            train.train(compose(*about, f"run_dir={tmp_path / name}", f"processes={processes}"))
        assert not table.exists() and capfd.readouterr().err.count("the target y is missing") == 1
    kept = [samples(tmp_path / name) for name in ("run", "tuned", "again")]
    assert len(kept[0]) > 8 and kept[0] == kept[1] == kept[2]


def resident() -> int:
    """Bytes of memory that this process holds."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return 1024 * int(line.split()[1])


@pytest.mark.skipif(not FORK, reason="needs fork and /proc")
def test_what_the_reading_freed_is_given_back(tmp_path):
    """Rows take 4 bytes a cell. Their texts and doubles are freed, and glibc kept them: 10 bytes a cell in all."""
    rows, columns = 2000, 1000
    seven = [",".join(f"{x:.5f}" for x in row) for row in np.random.default_rng(0).normal(size=(7, columns))]
    lines = [f"{i / 7:.5f},{seven[i % 7]}" for i in range(rows)]
    for name, part in (("small", lines[:100]), ("table", lines)):
        names = ",".join(["y", *(f"x{i}" for i in range(columns))])
        (tmp_path / f"{name}.csv").write_text("\n".join([names, *part]))

    def read() -> None:
        keep_freed_memory()
        RunData(warns=False).read(section(tmp_path / "small.csv"))  # loads libraries
        before = resident()
        held = RunData(warns=False)
        held.read(section(tmp_path / "table.csv"))
        assert resident() - before < 7 * rows * columns

    child = multiprocessing.get_context("fork").Process(target=read)
    child.start()
    child.join()
    assert child.exitcode == 0


def without(table: Path, called: Callable) -> Callable:
    def removing_it(*arguments: object) -> object:
        table.unlink(missing_ok=True)
        return called(*arguments)

    return removing_it
