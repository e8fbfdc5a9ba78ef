"""verify names every damaged file, and no command trusts a damaged or strange run."""

import json
import os
import shutil
from pathlib import Path

import pytest
from composing import compose
from manifests import rewrite
from omegaconf import OmegaConf
from running import TINY, WEIGHTED, done, refusal, sampled, samples

import bdl
from bdl.disk.manifest import Manifest
from bdl.disk.owner import Owner, start_of
from bdl.errors import BdlWarning, ConfigError, StoreError
from bdl.run import train
from bdl.run.config import config_hash
from bdl.run.directory import RunDirectory, output_folder
from bdl.run.stored import read_run
from bdl.run.verify import look


@pytest.fixture
def run(weighted) -> Path:
    """With a file for psi, too."""
    return weighted


@pytest.fixture
def copy(run, tmp_path) -> Path:
    """A finished run that a test may damage."""
    return Path(shutil.copytree(run, tmp_path / "copy"))


def bad(folder: Path) -> dict[str, str]:
    return {finding.what: finding.note for finding in look(folder) if finding.state == "bad"}


def test_a_whole_run_is_whole(script, run):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    status, out, _ = script("verify", f"run={run}")
    assert status == 0 and out.rstrip().endswith("nothing is bad")
    for name in ("config.yaml", "metrics.json", "samples/target.json", "samples/weighting-0.safetensors", "3 files"):
        assert name in out
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*")}  # nothing is written


@pytest.mark.parametrize("name", ["copy", "lr=0.1,seed=1", "it's"])
def test_a_folder_may_stand_without_its_key(script, copy, name, monkeypatch):
    copy.rename(copy.with_name(name))
    monkeypatch.chdir(copy.parent)
    assert done(script("verify", name)).rstrip().endswith("nothing is bad")


ALONE = {
    "no run": (("verify", "nowhere"), "nowhere"),
    "two for one key": (("verify", "a", "b"), "verify takes one folder, got a and b"),
    "the key of other commands": (("evaluate", "run=nowhere"), "nowhere is not a run directory"),
    "both keys": (("verify", "run=a", "runs=b"), "run is given twice: as run= and as runs="),
    "with and without key": (("evaluate", "a", "runs=[b]"), "runs is given twice: as runs= and as a"),
    "a word for train": (("train", "sgld"), "sgld has no key: write key=value"),
    "after an option": (("verify", "run=nowhere", "--config-dir", "absent"), "absent"),
}


@pytest.mark.parametrize("name", ALONE)
def test_words_without_a_key_that_do_not_fit_are_named(script, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    words, message = ALONE[name]
    assert message in refusal(script(*words))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


FILES = {
    "config.yaml": "config.yaml", "metrics.json": "metrics.json", "report.html": "report.html",
    "samples/target.json": "samples/target.json", "samples/index-0.jsonl": "samples/index-0.jsonl",
    "samples/weighting-0.safetensors": "samples/weighting-0.safetensors", "timing.json": "timing.json",
    "manifest-0.jsonl": "manifest-0.jsonl", "manifest.jsonl": "manifest.jsonl",
    "checkpoints/last.ckpt": "checkpoints/last.ckpt", "samples/00000009-0.safetensors": "sample files of stack 0",
}  # fmt: skip


@pytest.mark.parametrize("how", [flip, Path.unlink], ids=["altered", "lost"])
@pytest.mark.parametrize("name", FILES)
def test_every_damaged_file_is_named(copy, name, how):
    how(copy / name)
    if name == "checkpoints/last.ckpt" and how is Path.unlink:
        assert bad(copy) == {}  # a finished run does without
    elif name.startswith("manifest") and how is Path.unlink:
        assert bad(copy)["samples/target.json" if "0" in name else "metrics.json"].startswith("is in no manifest")
    else:
        assert FILES[name] in bad(copy), bad(copy)


ODD = {
    "a damaged list of lost chains": ("samples/excluded-0.json", "[", "samples/excluded-0.json", "is damaged"),
    "a loss that is a word": ("samples/target.json", '{"loss": "abc", "data": [1, 2]}', "config.yaml", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_files_of_another_form_are_named(copy, name):
    """They are listed as they are, so that the form alone tells."""
    file, content, what, words = ODD[name]
    Manifest(copy, 0).write(file, "text", content.encode())
    assert words in bad(copy)[what]


def test_a_checkpoint_of_another_name_is_no_fault(copy):
    shutil.copy(copy / "checkpoints" / "last.ckpt", copy / "checkpoints" / "last-v1.ckpt")
    assert bad(copy) == {}


def test_the_table_and_the_exit_status(script, copy):
    flip(copy / "samples" / "00000009-0.safetensors")
    status, out, _ = script("verify", f"run={copy}")
    assert status == 1 and "00000009-0.safetensors was altered" in " ".join(out.split()) and "1 of" in out


def test_leftovers_and_doubled_lines_are_named(copy):
    index = copy / "samples" / "index-0.jsonl"
    index.write_bytes(index.read_bytes() * 2)
    (copy / "samples" / ".writing-elsewhere-1-x").write_text("")
    assert "lines that the manifest does not list" in bad(copy)["samples/index-0.jsonl"]
    assert "the same command of train.py removes them" in {row.what: row.note for row in look(copy)}["leftovers"]


def test_the_same_command_mends_what_it_can(script, copy, run):
    """Leftovers are removed, and metrics that a user has removed are computed again."""
    leftover = copy / "samples" / ".writing-elsewhere-1-x"
    leftover.write_text("")
    (copy / "metrics.json").unlink()
    assert script("train", f"hydra.run.dir={copy}", "trainer=debug", *TINY, *WEIGHTED)[0] == 0
    assert not leftover.exists() and bad(copy) == {} and samples(copy) == samples(run)
    assert (copy / "metrics.json").read_bytes() == (run / "metrics.json").read_bytes()


@pytest.mark.filterwarnings("default::bdl.errors.BdlWarning")
@pytest.mark.parametrize("how", ["file", "line"])
def test_the_rest_of_a_run_can_be_evaluated(script, copy, tmp_path, how):
    """Of three samples of two chains, one has lost its file, or its line in the index."""
    flip(copy / "samples" / ("00000009-0.safetensors" if how == "file" else "index-0.jsonl"))
    words = ("evaluate", f"runs={copy}", f"out={tmp_path / 'out'}")
    assert "skip_bad=true uses the rest" in refusal(script(*words))
    assert script(*words, "skip_bad=true")[0] == 0
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["samples"] == 2 * 2


def test_no_run_directory(script, tmp_path):
    assert "is not a run directory" in refusal(script("verify", f"run={tmp_path}"))


def edit(path: Path, **changes) -> None:
    config = OmegaConf.load(path)
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value, force_add=True)
    OmegaConf.save(config, path)


def garble(name: str):
    return lambda run: (run / name).write_bytes(b"\xff\xfe{")


REFUSED = {
    "activation": (lambda run: edit(run / "config.yaml", model__activation="relu"), "does not describe its network"),
    "torch.load": (lambda run: edit(run / "config.yaml", data__x={"_target_": "torch.load"}), "_target_=torch.load"),
    "config": (garble("config.yaml"), "config.yaml is damaged"),
    "list": (lambda run: (run / "config.yaml").write_text("- 1"), "config.yaml is damaged (it is no mapping)"),
    "target": (garble("samples/target.json"), "target.json was altered"),
    "metrics": (garble("metrics.json"), "metrics.json is damaged"),
    "manifest": (lambda run: flip(run / "manifest-0.jsonl"), "manifest-0.jsonl is damaged"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::bdl.errors.BdlWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_a_damaged_or_strange_run_is_refused_in_one_line(script, copy, tmp_path, name):
    damage, words = REFUSED[name]
    damage(copy)
    assert words in refusal(script("evaluate", f"runs={copy}", f"out={tmp_path / 'out'}"))
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore::bdl.errors.BdlWarning")
def test_the_lines_before_a_damaged_one_of_manifest_can_be_used(script, copy, tmp_path):
    flip(copy / "manifest-0.jsonl")
    whole = len(Manifest(copy, 0).first_entries())
    status, _, _ = script("evaluate", f"runs={copy}", f"out={tmp_path / 'out'}", "skip_bad=true")
    kept = sum(len(r.chains) for r in bdl.SampleStore(copy, skip_bad=True).records())
    assert status == 0 and whole > 1 and json.loads((tmp_path / "out" / "metrics.json").read_text())["samples"] == kept


@pytest.mark.filterwarnings("ignore::bdl.errors.BdlWarning")
def test_a_damaged_psi_is_refused_after_the_warning(script, copy, tmp_path):
    garble("samples/weighting-0.safetensors")(copy)
    status, _, err = script("evaluate", f"runs={copy}", f"out={tmp_path / 'out'}")
    assert status == 1 and "weighting-0.safetensors was altered: its sha256 is not that of" in err[-1]
    assert not (tmp_path / "out").exists()


def test_a_file_that_was_altered_after_the_end_is_warned_of(copy):
    edit(copy / "config.yaml", monitor_every=7)
    with pytest.warns(BdlWarning, match="config.yaml was altered or lost after bdl had written it"):
        config = read_run(copy)
    assert config.monitor_every == 7


def test_files_that_were_added_to_an_ended_run_are_warned_of(copy):
    whole = read_run(copy)
    (copy / "samples" / "excluded-0.json").write_text("{}")
    with pytest.warns(BdlWarning, match="excluded-0.json is in no manifest: it was added, or its line was lost"):
        assert read_run(copy) == whole


def test_samples_that_the_manifest_lacks_are_warned_of(copy):
    whole, manifest = read_run(copy), Manifest(copy, 0)
    rewrite(manifest, [entry for entry in manifest.entries() if not entry.path.endswith("09-0.safetensors")])
    with pytest.warns(BdlWarning, match="last.ckpt knows samples that no manifest lists: some are lost"):
        assert read_run(copy) == whole


BOMB = "a: &a [x, x, x]\nb: &b [*a, *a, *a]\n"
DAMAGED = {
    "aliases": (lambda path: path.write_text(BOMB + path.read_text()), "it repeats parts by aliases"),
    "a pipe": (lambda path: (path.unlink(), os.mkfifo(path)), "it is no regular file"),
    "threads": (lambda path: edit(path, threads=100000), "threads must be a whole number from 1 to 1,024 or null"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_config_that_would_hang_or_crash_is_refused(copy, name):
    damage, words = DAMAGED[name]
    damage(copy / "config.yaml")
    with pytest.raises(ConfigError, match=f"config.yaml is damaged .*{words}"):
        read_run(copy)


LEFT = {
    "of an owner that was killed": lambda run: (run / "samples" / "owner-0.json").write_text("{}"),
    "of another configuration": lambda run: (run / "config.yaml").write_text("provenance: {config_hash: abc}\n"),
    "of a killed writer": lambda run: (run / "samples" / ".writing-elsewhere-1-x").write_text(""),
    "checkpoint half written": lambda run: (run / "checkpoints" / "last.writing").write_text("x"),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_a_directory_without_a_sample_is_no_run(tmp_path, name):
    for folder in ("samples", "checkpoints"):
        (tmp_path / "run" / folder).mkdir(parents=True)
    LEFT[name](tmp_path / "run")
    with RunDirectory(tmp_path / "run", "hash").owned():
        left = [p for p in (tmp_path / "run").rglob("*") if p.is_file()]
        assert [p.name for p in left] == ["owner.json"]


FOREIGN = {
    "config.yaml": ("model: mine\n", "already holds a run of another configuration (None"),
    "samples/cat.png": ("x", "cat.png is no file of a run"),
    "samples/00000001-0.safetensors": ("x", "holds samples, checkpoints or metrics without a config.yaml"),
    "samples/target.json": ("{}", "holds samples, checkpoints or metrics without a config.yaml"),
    "samples/index-00.jsonl": ("", "index-00.jsonl is no file of a run"),
    "metrics.json": ("{}", "holds samples, checkpoints or metrics without a config.yaml"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_a_directory_with_other_files_is_refused_by_name(tmp_path, name):
    content, words = FOREIGN[name]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    with pytest.raises((ConfigError, StoreError)) as error:
        RunDirectory(tmp_path, "hash")
    assert words in str(error.value) and (tmp_path / name).read_text() == content


@pytest.mark.parametrize(
    "link",
    [
        "samples",
        "checkpoints",
        "start",
        "samples/index-0.jsonl",
        "evaluation",
        "distilled",
        "refit",
        "continued",
        "manifest.jsonl",
        "manifest-0.jsonl",
    ],
)
def test_a_link_is_refused_because_another_run_would_be_written(tmp_path, link):
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    (mine / "config.yaml").write_text("provenance: {config_hash: hash}\n")
    for folder in ("samples", "checkpoints", "start/samples"):
        (other / folder).mkdir(parents=True)
    (other / "samples" / "index-0.jsonl").write_text("")
    (mine / link).parent.mkdir(exist_ok=True)
    (mine / link).symlink_to(other / link)
    with pytest.raises(ConfigError, match="is a link, and a run writes only into its own folder"):
        RunDirectory(mine, "hash")


@pytest.mark.parametrize("command", ["evaluate", "distil", "influence"])
def test_no_command_writes_over_the_files_of_a_run(script, tmp_path, command):
    (tmp_path / "config.yaml").write_text("")
    os.mkfifo(tmp_path / "pipe")
    words = f"{'runs' if command == 'evaluate' else 'run'}={tmp_path}"
    for out, line in ((tmp_path, "is the folder of a run, whose files"), (tmp_path / "pipe", "is no folder: name a")):
        assert line in refusal(script(command, words, f"out={out}"))


def test_a_usual_folder_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "comparison").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="comparison is a link"):
        output_folder(None, tmp_path / "comparison", "files")
    assert output_folder(tmp_path / "new", tmp_path, "files") == tmp_path / "new"


def test_hidden_files_and_folders_that_are_not_the_runs_stay(tmp_path):
    """A refused run takes back what it wrote; what lay there before stays, with or without a config.yaml."""
    for name in ("samples/.gitkeep", "checkpoints/.env"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match="before"), RunDirectory(tmp_path, "hash").owned():
        raise ConfigError("before config.yaml")
    with pytest.raises(ConfigError, match="after"), RunDirectory(tmp_path, "hash").owned():
        (tmp_path / "config.yaml").write_text("provenance: {config_hash: hash}\n")
        (tmp_path / "samples" / "target.json").write_text("{}")
        raise ConfigError("after config.yaml")
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["checkpoints/.env", "samples/.gitkeep"]


def test_the_locks_of_runs_below_the_folder_are_not_this_runs(tmp_path):
    (tmp_path / "a" / "samples").mkdir(parents=True)
    lock = tmp_path / "a" / "samples" / "owner-0.json"
    lock.write_text("{}")
    with RunDirectory(tmp_path, "hash").owned():
        assert lock.exists()


def test_an_error_takes_back_what_was_written_and_nothing_else(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="no"), RunDirectory(run, "hash").owned():
        (run / "config.yaml").write_text("provenance: {config_hash: hash}\n")
        (run / "samples").mkdir()
        (run / "samples" / "target.json").write_text("{}")
        (run / "logs" / "version_0").mkdir(parents=True)
        (run / "logs" / "version_0" / "hparams.yaml").write_text("")
        (run / "other.txt").write_text("another program's")
        raise ConfigError("no")
    assert sorted(p.name for p in run.rglob("*")) == ["notes.txt", "other.txt"]


def test_the_second_command_says_who_owns_the_run(script, tmp_path):
    """The owner is the process that started the tests."""
    run = tmp_path / "run"
    run.mkdir()
    pid = os.getppid()
    owner = {**vars(Owner.this_process()), "pid": pid, "started": start_of(pid)}
    (run / "owner.json").write_text(json.dumps(owner))
    error = refusal(script("train", f"hydra.run.dir={run}", "trainer=debug", *TINY))
    assert f"{run} belongs to process {pid} on" in error and "wait until it has ended" in error
    assert [p.name for p in run.iterdir()] == ["owner.json"]


def test_a_stopped_run_with_a_lost_sample_says_so_early(tmp_path):
    """The run had ended, and was killed before it was evaluated."""
    sampled(tmp_path, "trainer=debug", *TINY)
    (bdl.SampleStore(tmp_path).folder / "00000009-0.safetensors").unlink()
    cfg = compose(f"run_dir={tmp_path}", "trainer=debug", *TINY)
    assert RunDirectory(tmp_path, config_hash(cfg)).metrics is None
    with pytest.raises(StoreError, match="1 of 3 sample files in .* are missing or cut short, 00000009-0"):
        train.train(cfg)
