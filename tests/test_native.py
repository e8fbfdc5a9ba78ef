"""C code is compiled once, kept in a cache that mends itself, and done without where there is no compiler."""

import os

import pytest
from forked import Forked

import bdl
from bdl import native
from bdl.engine.choose import choose_gradient
from bdl.engine.mlp_gradient import MLPGradient
from bdl.errors import ConfigError
from bdl.models import MLP
from bdl.samplers.noise import SOURCE  # the shortest C file of bdl

NLL = bdl.CategoricalNLL()

pytestmark = pytest.mark.skipif(native.load(SOURCE) is None, reason="no C compiler")


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """As in a new process, with an empty cache folder, which is returned."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native, "_outcome", {})
    native._compiler.cache_clear()
    yield tmp_path / "bdl"
    native._compiler.cache_clear()


@pytest.mark.parametrize("mask", [0o022, 0o002], ids=["", "users whose files their group may write"])
def test_the_code_is_built_once(fresh, monkeypatch, mask):
    before = os.umask(mask)
    try:
        assert native.load(SOURCE, required=True)
    finally:
        os.umask(before)
    (made,) = fresh.iterdir()
    monkeypatch.setattr(native, "_outcome", {})
    monkeypatch.setattr(native, "_compile", lambda *args: pytest.fail("compiled again"))
    assert native.load(SOURCE, required=True)
    assert [*fresh.iterdir()] == [made]


@pytest.mark.parametrize("keep", [0, 1000])
def test_a_damaged_file_is_built_again(fresh, monkeypatch, keep):
    native.load(SOURCE, required=True)
    (made,) = fresh.iterdir()
    whole = made.read_bytes()
    made.unlink()  # the loaded file stays mapped
    made.write_bytes(whole[:keep])
    monkeypatch.setattr(native, "_outcome", {})
    assert hasattr(native.load(SOURCE, required=True), "bdl_normal")
    assert made.read_bytes() == whole


def test_a_folder_that_cannot_be_written_is_no_failure(fresh, monkeypatch):
    fresh.parent.joinpath("file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(fresh.parent / "file"))
    assert native.load(SOURCE, required=True)


def test_two_processes_may_build_at_once(tmp_path):
    script = tmp_path / "build.py"
    script.write_text(
        "from bdl import native; from bdl.samplers import noise; native.load(noise.SOURCE, required=True)"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    for process in [Forked([str(script)], tmp_path, environment) for _ in range(2)]:
        _, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
    assert {path.suffix for path in (tmp_path / "bdl").iterdir()} == {".so"}


def test_without_a_compiler_the_eager_version_runs(fresh, monkeypatch):
    monkeypatch.setenv("PATH", str(fresh))
    monkeypatch.delenv("CC", raising=False)
    stack = bdl.ChainStack(MLP((5, 4, 3)), 2)
    assert type(choose_gradient(stack, NLL)) is MLPGradient
    with pytest.raises(ConfigError, match="compile=true needs a working C compiler"):
        choose_gradient(stack, NLL, compiled=True)


def test_with_a_compiler_that_fails_the_eager_version_runs(fresh, monkeypatch):
    fresh.mkdir()
    broken = fresh / "broken"
    broken.write_text("#!/bin/sh\necho 'out of licences' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    stack = bdl.ChainStack(MLP((5, 4, 3)), 2)
    assert type(choose_gradient(stack, NLL)) is MLPGradient
    with pytest.raises(ConfigError, match="compile=true needs a working C compiler: out of licences"):
        choose_gradient(stack, NLL, compiled=True)


@pytest.mark.parametrize("script, words", [
    ("echo one >&2; exit 1", "one; install"), ("exit 1", "broken failed"), ("exec sleep 20", "timed out after"),
])  # fmt: skip
def test_a_compiler_that_fails_is_named_by_what_it_says(fresh, monkeypatch, script, words):
    fresh.mkdir()
    (fresh / "broken").write_text(f"#!/bin/sh\n{script}\n")
    (fresh / "broken").chmod(0o755)
    monkeypatch.setenv("CC", str(fresh / "broken"))
    monkeypatch.setattr(native, "SECONDS", 0.5)
    with pytest.raises(ConfigError, match=words):
        native.load(SOURCE, required=True)


def test_a_compiler_that_refuses_the_first_flag_gets_the_second(fresh, monkeypatch):
    fresh.mkdir()
    compiler = native._compiler()
    (fresh / "arm").write_text(f'#!/bin/sh\ncase "$*" in *{native._NATIVE[0]}*) exit 1;; esac\n'
                               f"""exec {compiler} $(echo "$@" | sed 's/{native._NATIVE[1]}//')\n""")  # fmt: skip
    (fresh / "arm").chmod(0o755)
    monkeypatch.setenv("CC", str(fresh / "arm"))
    native._compiler.cache_clear()
    assert hasattr(native.load(SOURCE, required=True), "bdl_normal")


@pytest.mark.parametrize("changed", ["source", "header", "flags", "compiler", "processor"])
def test_what_decides_the_machine_code_decides_the_name(tmp_path, monkeypatch, changed):
    """A cache may be shared by machines, and outlives versions of bdl and of the compiler."""
    source, compiler = tmp_path / "a.c", tmp_path / "cc"
    for path in (source, compiler, tmp_path / "a.h"):
        path.write_text("1")
    before = native._key(source, str(compiler))
    assert native._key(source, str(compiler)) == before
    if changed in ("source", "header"):
        (source if changed == "source" else tmp_path / "a.h").write_text("2")
    if changed == "flags":
        monkeypatch.setattr(native, "_FLAGS", ("-O0",))
    if changed == "compiler":
        compiler.write_text("another version")
    if changed == "processor":
        monkeypatch.setattr(native, "cpu", lambda: {"flags": "fewer"})
    assert native._key(source, str(compiler)) != before


def test_a_damaged_file_of_another_version_is_removed(fresh):
    native.load(SOURCE, required=True)
    (made,) = fresh.iterdir()
    name = made.stem.rpartition("-")[0]
    (fresh / f"{name}-{'0' * 20}.so").write_bytes(b"damaged")
    assert native._cached(fresh, name) is not None and [*fresh.iterdir()] == [made]


def test_where_the_shared_place_is_not_private_the_home_has_the_cache(fresh, monkeypatch):
    """Else every process would compile again."""
    fresh.mkdir()
    fresh.chmod(0o777)
    monkeypatch.setenv("HOME", str(fresh.parent / "home"))
    native.load(SOURCE, required=True)
    assert len([*(fresh.parent / "home" / ".cache" / "bdl").iterdir()]) == 1 and [*fresh.iterdir()] == []


def planted(folder, name, make):
    """A file whose name is what anybody can compute, with the right hash of its content."""
    folder.mkdir(mode=0o700, exist_ok=True)
    source = folder / "planted.so"
    make(source)
    digest = native._digest(source) if source.is_file() else "0" * 20
    source.rename(folder / f"{name}-{digest}.so")
    return folder / f"{name}-{digest}.so"


@pytest.mark.parametrize("planted_as", ["folder", "folder of a group", "file", "file of a group", "link", "pipe"])
def test_what_another_user_may_have_planted_is_not_loaded(fresh, monkeypatch, planted_as):
    """The cache in a place that several users share: only a regular file that this user alone can write is code."""
    name = f"{SOURCE.stem}-{native._key(SOURCE, native._compiler())}"
    make = os.mkfifo if planted_as == "pipe" else lambda path: path.write_bytes(b"not a library")
    path = planted(fresh, name, make)
    if planted_as.startswith("folder"):
        fresh.chmod(0o770 if "group" in planted_as else 0o707)
    if planted_as.startswith("file"):
        path.chmod(0o660 if "group" in planted_as else 0o606)
    if planted_as == "link":
        path.rename(fresh / "elsewhere")
        path.symlink_to(fresh / "elsewhere")
    loaded = []
    dll = native.ctypes.CDLL
    monkeypatch.setattr(native.ctypes, "CDLL", lambda file: loaded.append(file) or dll(file))
    monkeypatch.setenv("HOME", str(fresh.parent / "home"))
    assert hasattr(native.load(SOURCE, required=True), "bdl_normal")
    assert str(path) not in loaded


def test_a_folder_of_another_user_is_left_alone(fresh, monkeypatch):
    fresh.mkdir(mode=0o755)
    monkeypatch.setenv("HOME", str(fresh.parent / "home"))
    monkeypatch.setattr(native.os, "geteuid", lambda: os.getuid() + 1)
    assert native.load(SOURCE, required=True) and [*fresh.iterdir()] == []
