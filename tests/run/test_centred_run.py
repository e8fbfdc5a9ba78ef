"""sampler.prior.mean=start from the command line: one centre for all stacks, kept by a resumed run; refusals."""

import json
from pathlib import Path

import pytest
import running
import torch
from composing import compose
from running import TINY, refusal, sampled

import bdl
from bdl.models import MLP
from bdl.run.validate import check_config
from bdl.samplers.priors.centres import fingerprint

CENTRED = ("start=checkpoint", "sampler.prior.mean=start", "sampler.prior.precision=20")


def weights(folder: Path, sizes=(36, 6)) -> str:
    torch.manual_seed(0)
    torch.save(MLP(sizes).state_dict(), folder / "weights.pt")
    return f"start.path={folder / 'weights.pt'}"


def recorded(run: Path) -> dict:
    return json.loads((run / "samples" / "target.json").read_text())["prior"]


def test_all_stacks_share_the_centre_of_the_file(tmp_path):
    """target.json records it by its checksum. The same run around 0 has another target, and is not merged."""
    path = weights(tmp_path)
    running.whole(tmp_path / "run", *CENTRED, path, "chains=4", "stacks=2")
    saved = torch.load(tmp_path / "weights.pt", weights_only=True)
    flat = torch.cat([saved[name].flatten() for name, _ in MLP((36, 6)).named_parameters()])
    expected = {"type": "bdl.Gaussian", "precision": 20.0, "mean": fingerprint(flat)}
    assert recorded(tmp_path / "run") == expected
    posterior = bdl.Posterior.load(tmp_path / "run", MLP((36, 6)))
    assert posterior.target["prior"] == expected and posterior.samples == 12
    sampled(
        tmp_path / "other", "trainer=debug", *TINY, "start=checkpoint", path, "sampler.prior.precision=20", "seed=1"
    )
    with pytest.raises(bdl.StoreError, match=r"not merged: prior\.mean is .* absent"):
        bdl.Posterior.load([tmp_path / "run", tmp_path / "other"], MLP((36, 6)))


@pytest.mark.parametrize(
    "overrides, words",
    [
        ([], "begins at random values, other ones in every chain: start=checkpoint"),
        (["start=adamw"], "begins at random values, other ones in every chain: start=checkpoint"),
        (["start=checkpoint", "{path}", "start.skip=[0.bias]"], "0.bias begins at random values"),
        (["sampler.prior.mean=[0.1,0.2]"], 'must be a finite number, "start", or'),
    ],
    ids=["random", "ensemble", "new head", "list"],
)
def test_what_has_no_centre_is_refused_in_one_line(overrides, words, script, tmp_path):
    """Also where each stack has one chain, so that no stack sees chains that begin apart."""
    given = [override.format(path=weights(tmp_path)) for override in overrides]
    if not any("prior.mean" in o for o in given):
        given.append("sampler.prior.mean=start")
    run = tmp_path / "run"
    line = refusal(script("train", f"hydra.run.dir={run}", "trainer=debug", *TINY, "stacks=2", "processes=1", *given))
    assert words in line
    assert not (run / "samples").exists()


def test_means_by_name_are_written_in_the_configuration():
    """Numbers by name pass the checks before the run."""
    each = ",".join(f"{name}:0.1" for name, _ in MLP((36, 6)).named_parameters())
    check_config(compose("trainer=debug", *TINY, f"sampler.prior.mean={{{each}}}"))
