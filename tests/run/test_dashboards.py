"""Tests of `bdl.run.write_report`.

W&B and TensorBoard: an offline run is read back record by record, and an event file image by image.
"""

import io
import json
import struct
from collections import ChainMap
from pathlib import Path

import pytest
import yaml
from composing import CONF, composed
from PIL import Image
from running import done

HEADER, BLOCK = 7, 2**15  # bytes: of the file and of a record; of a block of LevelDB's log


def records(path: Path):
    """The records of a .wandb file: LevelDB's log format, with W&B's own messages in it."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, parts = path.read_bytes(), HEADER, []
    assert data[:4] == b":W&B"
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:  # the rest of a block is padding
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + HEADER])
        parts.append(data[place + HEADER : place + HEADER + length])
        place += HEADER + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = Record()
            record.ParseFromString(b"".join(parts))
            yield record
            parts = []


def test_an_offline_wandb_run_holds_report_pictures_and_series(tmp_path, script):
    pytest.importorskip("wandb")
    options = ("chains=2", "stacks=1", "monitor_every=4", "trainer.max_steps=12", "collect.keep.every=2")
    done(script("train", f"hydra.run.dir={tmp_path / 'a'}", "trainer=debug", "logger=wandb", *options))
    (folder,) = (tmp_path / "a" / "wandb").glob("offline-run-*")
    (path,) = folder.glob("*.wandb")
    found = list(records(path))
    run = next(r.run for r in found if r.HasField("run"))
    assert run.run_group == "landsat-mlp-langevin" and sorted(run.tags) == ["landsat", "langevin", "mlp"]
    rows = [{"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in r.history.item} for r in found]
    logged = ChainMap(*reversed(rows))  # the last value of every key
    assert {"energy/chain_0", "energy/chain_1", "chain/energy"} <= logged.keys()
    metrics = json.loads((tmp_path / "a" / "metrics.json").read_text())
    assert logged["test/bma/nll"] == pytest.approx(metrics["test/bma/nll"])
    page = (folder / "files" / logged["report/path"]).read_text()
    assert page == (tmp_path / "a" / "report.html").read_text()
    pictures = {key.removesuffix("/path") for key in logged if key.startswith("pictures/") and key.endswith("/path")}
    assert {"pictures/Energy", "pictures/Reliability"} <= pictures
    for name in pictures:
        size = Image.open(folder / "files" / logged[f"{name}/path"]).size
        assert size == (logged[f"{name}/width"], logged[f"{name}/height"])
    table = json.loads((folder / "files" / logged["scores/path"]).read_text())
    assert table["columns"][:2] == ["average", "error %"]
    (average,) = [row for row in table["data"] if row[0] == "all chains' average"]
    assert average[table["columns"].index("NLL (nats)")] == f"{metrics['test/bma/nll']:.4f}"
    summary = {i.key: i.value_json for r in found for i in r.summary.update}
    assert json.loads(summary["verdict"]).startswith("verdict: ")


@pytest.mark.slow
def test_tensorboard_shows_the_same_pictures(tmp_path, script):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    options = ("chains=2", "stacks=1", "monitor_every=4", "trainer.max_steps=12", "collect.keep.every=2")
    done(script("train", f"hydra.run.dir={tmp_path / 'a'}", "trainer=debug", "logger=tensorboard", *options))
    (folder,) = {p.parent for p in (tmp_path / "a").rglob("events.out.*")}
    events = accumulator.EventAccumulator(str(folder)).Reload()
    assert {"pictures/Energy", "pictures/Reliability"} <= set(events.Tags()["images"])
    image = Image.open(io.BytesIO(events.Images("pictures/Energy")[0].encoded_image_string))
    assert image.width > 1000 and image.getpixel((1, 1)) == (255, 255, 255)
    assert {"energy/chain_0", "energy/chain_1", "test/bma/nll"} <= set(events.Tags()["scalars"])


def test_every_parameter_of_the_sweep_is_a_key_of_train():
    sweep = yaml.safe_load((CONF / "wandb" / "sweep.yaml").read_text())
    assert (CONF.parent / sweep["program"]).exists() and sweep["command"][-1] == "${args_no_hyphens}"
    values = {key: rule.get("value", rule.get("min")) for key, rule in sweep["parameters"].items()}
    cfg = composed("logger=wandb", *(f"{key}={value}" for key, value in values.items()))
    assert cfg.data.val_fraction > 0 and sweep["metric"]["name"] == "val/bma/nll"
    assert cfg.sampler.lr == values["sampler.lr"]
