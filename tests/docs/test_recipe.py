"""CONTRIBUTING's recipes, followed to the letter in a package of its own: a sampler, a data set, a likelihood."""

import importlib
import os
import shutil
import sys
from pathlib import Path

import pytest
import scipy.stats
import torch
from forked import Forked
from pages import CONTRIBUTING, ROOT, blocks, commands, options

import bdl

PAGES = CONTRIBUTING, ROOT / "docs" / "own-network.md"  # the second has the likelihood
FILES = {block.title: block.code for page in PAGES for block in blocks(page, "python", "yaml") if block.title}
ROW = FILES.pop("tests/samplers/table.py")
SHORT = ("chains=2", "collect.keep.burn_in=20", "collect.keep.every=10", "logger=none", "hydra.run.dir=run")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The folder that holds every file of the recipes, importable."""
    for title, code in FILES.items():
        path = tmp_path / title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for title in FILES:
        sys.modules.pop(title.split("/")[0].removesuffix(".py"), None)


def environment(package) -> dict[str, str]:
    paths = [str(package), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "WANDB_MODE": "offline"}


def run(package, word: str) -> str:
    """Run CONTRIBUTING's own command that has this word in its options, shortened; returns the run's config.yaml."""
    written = [o for c in commands(CONTRIBUTING) if (o := options(c, "train")) and word in o]
    assert len(written) == 1
    process = Forked([str(ROOT / "scripts" / "train.py"), *written[0], *SHORT], package, environment(package))
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert (package / "run" / "metrics.json").exists()
    return (package / "run" / "config.yaml").read_text()


def test_a_sampler_of_ones_own_runs_from_the_command_line(package):
    """50 steps, samples and report included."""
    config = run(package, "sampler=tamed_sgld")
    assert "_target_: mypackage.TamedSGLD" in config
    assert len((package / "run" / "samples" / "index-0.jsonl").read_text().splitlines()) == 3


def test_a_sampler_of_ones_own_has_the_law_that_it_states(package):
    """N(0, 1) by 4,096 chains at lr .01: the variance is off by 1.6 lr for the tamed drift and lr/2 for the step.

    A chain forgets in 1/lr = 100 steps, so 5 relaxation times of 4,096 chains give a standard error of about 1 %.
    """
    dynamics = importlib.import_module("mypackage").TamedSGLD()
    assert isinstance(dynamics, bdl.Dynamics)
    random = torch.Generator().manual_seed(0)
    theta = torch.randn(4096, 1, generator=random).requires_grad_()
    sampler = bdl.Sampler([theta], dynamics, num_data=1, lr=0.01, prior=bdl.Uniform(), chains=4096)

    def closure():
        sampler.zero_grad()
        energy = theta.square().sum(1) / 2
        energy.sum().backward()
        return energy.detach()

    squares = []
    for step in range(900):
        sampler.step(closure)
        if step >= 400:
            squares.append(theta.detach().square().mean())
    assert torch.stack(squares).mean().item() == pytest.approx(1, abs=0.05)


def test_one_row_of_the_table_runs_laws_and_reductions(package):
    """In a copy of tests/samplers whose table has CONTRIBUTING's row, without the tests of many chains."""
    copy = package / "samplers"
    shutil.copytree(ROOT / "tests" / "samplers", copy, ignore=shutil.ignore_patterns("__pycache__"))
    table = (copy / "table.py").read_text()
    assert table.count("TABLE = [\n") == 1
    table = table.replace("TABLE = [\n", f"TABLE = [\n    {ROW.strip()},\n").replace(
        "import bdl\n", "import bdl\nimport mypackage\n"
    )
    (copy / "table.py").write_text(table)
    chosen = (
        "-m",
        "",
        "-k",
        "tamed-sgld and not through_the_shell",
        "-c",
        str(ROOT / "pyproject.toml"),
        "-p",
        "no:cacheprovider",
    )
    command = [str(Path(pytest.__file__).with_name("__main__.py")), "-v", *chosen, "test_laws.py", "test_reductions.py"]
    process = Forked(command, copy, environment(package))
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0, out
    assert int(out.split(" passed")[0].split()[-1]) >= 6, out


def test_a_data_set_of_ones_own_runs_from_the_command_line(package):
    assert "_target_: mydata.TwoMoons" in run(package, "data=two_moons")


def test_a_likelihood_of_ones_own_is_the_law_that_it_states(package):
    """Against scipy, for 3 chains with 20 items of 2 outputs each."""
    from bdl.likelihoods import outputs_of

    loss = importlib.import_module("mylikelihood").GammaNLL(3.0)
    outputs, y = torch.randn(3, 20, 2), torch.rand(3, 20, 2) + 0.1
    expected = -scipy.stats.gamma(3.0, scale=outputs.exp() / 3).logpdf(y).sum(-1)
    torch.testing.assert_close(loss(outputs, y), torch.as_tensor(expected), check_dtype=False)
    torch.testing.assert_close(loss.mean(outputs), outputs.exp())
    assert outputs_of(loss) == "values"
