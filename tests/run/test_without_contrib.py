"""Tests of `bdl.parts`: without contrib, the core imports, trains, resumes, predicts and reports."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = "a,b,y\n" + "".join(f"{i % 7},{i % 5},{i % 7 - i % 5 + 0.5}\n" for i in range(60))
TRAIN = ["train", "data=csv", "data.path=table.csv", "data.target=y", "tune=false", "sampler=sghmc", "sampler.lr=0.001"]
RUN = [*TRAIN, "chains=2", "logger=none", "hydra.run.dir=run"]


@pytest.fixture(scope="module")
def core(tmp_path_factory) -> Path:
    """A folder with the package, without contrib, and a table."""
    folder = tmp_path_factory.mktemp("core")
    shutil.copytree(ROOT / "bdl", folder / "bdl", ignore=shutil.ignore_patterns("contrib", "__pycache__"))
    shutil.copytree(ROOT / "conf", folder / "conf")
    (folder / "table.csv").write_text(TABLE)
    return folder


def python(core: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A new interpreter in the folder, whose package comes before that of this environment."""
    code = "import sys; sys.path.insert(0, ''); " + words[0]
    return subprocess.run([sys.executable, "-c", code, *words[1:]], cwd=core, capture_output=True, text=True)


def bdl(core: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return python(core, "from bdl.run.command import main; main()", *words)


def test_it_imports_and_says_which_part_is_missing(core: Path):
    ran = python(core, "import bdl, bdl.data, bdl.models; print(bdl.__file__, hasattr(bdl.Posterior, 'thin'))")
    assert ran.stdout.split() == [str(core / "bdl" / "__init__.py"), "False"], ran.stderr
    ran = bdl(core, "distil", "run=run")
    assert ran.returncode == 1 and "bdl distil is a part of bdl.contrib, which this installation lacks" in ran.stderr


def test_it_trains_resumes_predicts_and_reports(core: Path):
    code = "import sys; sys.path.insert(0, ''); from bdl.run.command import main; main()"
    words = [sys.executable, "-c", code, *RUN, "length=8000"]
    with subprocess.Popen(words, cwd=core, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as first:
        while first.poll() is None and not list((core / "run").glob("samples/*.safetensors")):
            time.sleep(0.05)
        first.terminate()  # the state is saved
    assert first.returncode != 0 and not (core / "run" / "metrics.json").exists()
    again = bdl(core, *RUN, "length=8000")
    assert again.returncode == 0 and "resuming from" in again.stdout, again.stderr
    assert (core / "run" / "report.html").exists() and (core / "run" / "metrics.json").exists()
    predicted = bdl(core, "predict", "run=run", "input=table.csv", "output=out.csv")
    assert predicted.returncode == 0 and len((core / "out.csv").read_text().splitlines()) == 61, predicted.stderr
