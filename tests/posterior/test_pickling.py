"""A posterior in memory outlives its files, and computes in the precision of its network."""

import pickle
import shutil

import pytest
import torch
import toys

import bdl


def test_a_cached_posterior_can_be_pickled_and_needs_no_file(tmp_path):
    toys.sample(tmp_path / "run")
    posterior, (x, _) = bdl.Posterior.load(tmp_path / "run", toys.plain()).cache(), toys.tensors(seed=2)
    expected = posterior.predict(x).probs
    shutil.rmtree(tmp_path / "run")
    again = pickle.loads(pickle.dumps(posterior))
    assert torch.equal(again.predict(x).probs, expected) and again.samples == posterior.samples


@pytest.mark.parametrize("cached", [False, True])
def test_a_network_in_double_precision_takes_inputs_in_it(run, cached):
    x, _ = toys.tensors(seed=2)
    single, double = (bdl.Posterior.load(run, toys.plain().to(d)) for d in (torch.float32, torch.float64))
    if cached:
        double.cache()
    torch.testing.assert_close(double.predict(x.double()).probs, single.predict(x).probs, rtol=0, atol=1e-6)
    one_by_one = torch.cat([double.predict(row.double()).probs for row in x.split(1)])
    torch.testing.assert_close(one_by_one, double.predict(x.double()).probs, rtol=0, atol=1e-7)
