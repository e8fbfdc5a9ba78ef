"""Tests of `bdl.run.in_python` and `bdl.likelihoods.losses`: mistakes that pass in silence."""

import numpy as np
import pytest
import torch
import toys
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.errors import BdlWarning, ConfigError
from bdl.likelihoods import refuse_misfit
from bdl.posterior.store import SampleStore
from bdl.schedules import EveryStep

X, Y = toys.tensors()


def call(folder, net, loss, y, chains=None, **arguments):
    loader = DataLoader(TensorDataset(X, y), batch_size=10)
    settings = {"steps": 4, "lr": 0.01, "chains": chains, "accelerator": "cpu", **arguments}
    return bdl.sample(net, loss, loader, folder, **settings)


@pytest.mark.parametrize("chains", [None, 2])
@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.functional.mse_loss, nn.L1Loss()])
@pytest.mark.filterwarnings("ignore:Using a target size")  # torch's own, which the command line hides
def test_numbers_are_not_broadcast(tmp_path, loss, chains):
    with pytest.raises(ConfigError, match=r"broadcasts outputs of shape \((2, )?10, 1\) against targets of shape"):
        call(tmp_path, nn.Sequential(nn.Linear(3, 1)), loss, X[:, 0], chains)
    call(tmp_path, nn.Sequential(nn.Linear(3, 1)), nn.MSELoss(), X[:, :1], chains)


@pytest.mark.parametrize("chains", [None, 2])
@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss()])
def test_probabilities_are_no_logits(tmp_path, loss, chains):
    with pytest.raises(ConfigError, match="remove the softmax at the end of the network"):
        call(tmp_path, nn.Sequential(nn.Linear(3, 3), nn.Softmax(-1)), loss, Y, chains)
    call(tmp_path, nn.Sequential(nn.Linear(3, 3), nn.LogSoftmax(-1)), loss, Y, chains)  # its softmax is the same


@pytest.mark.parametrize("chains", [None, 2])
def test_logits_are_no_log_probabilities(tmp_path, chains):
    with pytest.raises(ConfigError, match=r"the loss takes log probabilities.* end it in nn.LogSoftmax\(-1\), or use"):
        call(tmp_path, nn.Sequential(nn.Linear(3, 3)), nn.NLLLoss(), Y, chains)
    call(tmp_path, nn.Sequential(nn.Linear(3, 3), nn.LogSoftmax(-1)), nn.NLLLoss(), Y, chains)


@pytest.mark.parametrize("chains", [None, 2])
@pytest.mark.parametrize("loss", [nn.BCEWithLogitsLoss(), bdl.BernoulliNLL()])
def test_a_sigmoid_before_that_of_the_loss_is_pointed_out(tmp_path, loss, chains):
    with pytest.warns(BdlWarning, match="all outputs of the first batch lie between 0 and 1.*remove the sigmoid"):
        call(tmp_path, nn.Sequential(nn.Linear(3, 1), nn.Sigmoid()), loss, (Y[:, None] > 0).float(), chains)


@pytest.mark.parametrize("loss", [nn.L1Loss(), nn.SmoothL1Loss(), nn.HuberLoss(), nn.functional.huber_loss])
def test_losses_with_a_scale_of_their_own_are_pointed_out(tmp_path, loss):
    with pytest.warns(BdlWarning, match="is the likelihood of errors whose scale is 1, whatever the data: use bdl.Stu"):
        call(tmp_path, nn.Sequential(nn.Linear(3, 1)), loss, X[:, :1])


def test_numbers_of_chains_may_be_numpys(tmp_path):
    assert call(tmp_path, toys.plain(), None, Y, np.int64(2)).samples == 2 * 2


def test_logits_of_one_sign_and_likelihoods_of_numbers_pass():
    refuse_misfit(nn.CrossEntropyLoss(), torch.rand(5, 3), torch.zeros(5).long())
    refuse_misfit(bdl.GaussianNLL(1.0), torch.zeros(5, 1), torch.zeros(5))
    refuse_misfit(lambda outputs, y: outputs.mean(), torch.ones(5, 1), torch.zeros(5))


def test_a_call_killed_before_its_first_checkpoint_begins_again(tmp_path):
    """What a kill leaves: samples, the settings of the call, and no checkpoint."""
    made = call(tmp_path, toys.plain(), None, Y, keep=EveryStep(0, 1)).samples
    (tmp_path / "checkpoints" / "last.ckpt").unlink()
    again = call(tmp_path, toys.plain(), None, Y, keep=EveryStep(0, 1))
    assert again.samples == made == 4


def test_a_refused_call_does_not_bind_the_next_one(tmp_path):
    with pytest.raises(ConfigError):
        call(tmp_path, toys.plain(), None, Y, lr=-1.0)
    assert call(tmp_path, toys.plain(), None, Y, lr=0.02).samples > 0


def test_samples_of_another_loop_are_kept(tmp_path):
    """They are nobody's to remove, and the words are of the call, not of a Trainer that its caller does not have."""
    toys.sample(tmp_path, 4)
    before = len(SampleStore(tmp_path).records())
    with pytest.raises(ConfigError, match="holds samples that bdl.sample did not make") as error:
        call(tmp_path, toys.plain(), None, Y)
    assert "Trainer" not in str(error.value) and len(SampleStore(tmp_path).records()) == before
