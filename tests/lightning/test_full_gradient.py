"""Tests of `bdl.lightning.full_gradient` and `bdl.contrib.control.check`, and of control variates inside Lightning."""

from dataclasses import replace

import lightning as L
import pytest
import torch
import toys
from closures import closure_of
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import bdl
from bdl.engine import graphs
from bdl.errors import ConfigError
from bdl.lightning.blocks import StepCallback
from bdl.models import MLP


class Watch(StepCallback):
    """Sees every step in Lightning's loop, so that no block is made."""


def fit(tmp_path, steps=12, net=None, chains=2, compile="auto", callbacks=(), loader=None, options=None, **sampler):
    torch.manual_seed(0)
    module = toys.module(net, chains, **({"gradient": bdl.ControlVariate(every=7)} | sampler))
    module.compiled = compile
    loader = toys.batches(chains) if loader is None else loader
    toys.trainer(tmp_path, steps, callbacks, **(options or {})).fit(module, loader)
    return module


@pytest.mark.parametrize("compile, chains", [("auto", 2), (False, 2), (False, None)])
def test_the_gradient_of_all_the_data_is_that_of_their_mean_loss(tmp_path, compile, chains):
    module = fit(tmp_path, 3, compile=compile, chains=chains)
    loss = module.sampler.full_gradient()
    gradients = [p.grad.clone() for p in module.sampler.sampled]
    x, y = toys.tensors()
    outputs = module(x)
    each = outputs if chains else outputs[None]
    expected = torch.stack([nn.functional.cross_entropy(out, y) for out in each])
    wanted = torch.autograd.grad(expected.sum(), module.sampler.sampled)
    torch.testing.assert_close(loss.reshape(-1).float(), expected.detach())
    for gradient, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, other)


def test_a_run_by_blocks_in_c_is_that_by_single_steps(tmp_path):
    """In C to the byte, inside blocks and outside; by torch to rounding. Plain batches lead elsewhere."""
    blocks, steps = fit(tmp_path), fit(tmp_path, callbacks=[Watch()])
    assert torch.equal(blocks.sampler.chain.theta, steps.sampler.chain.theta)
    by_torch = fit(tmp_path, compile=False)
    torch.testing.assert_close(by_torch.sampler.chain.theta, blocks.sampler.chain.theta, rtol=1e-4, atol=1e-5)
    plain = fit(tmp_path, gradient=None)
    assert (plain.sampler.chain.theta - blocks.sampler.chain.theta).abs().max() > 1e-3


def test_recorded_kernels_follow_anchors_that_are_renewed(tmp_path, simulated, monkeypatch):
    """On an accelerator, whose steps are recorded, after two renewals: to the byte what single kernels give."""
    made = []
    record = graphs.record_on_cuda
    monkeypatch.setattr(graphs, "record_on_cuda", lambda work, streams: made.append(work) or record(work, streams))
    recorded, single = fit(tmp_path, 20, compile="auto"), fit(tmp_path, 20, compile=False)
    assert made and recorded.sampler.evaluation.anchored_at == 14
    assert torch.equal(recorded.sampler.chain.theta.cpu(), single.sampler.chain.theta.cpu())
    made.clear()
    fused = fit(tmp_path, 20, compile=True)
    assert made and fused.sampler.evaluation.anchored_at == 14
    torch.testing.assert_close(fused.sampler.chain.theta.cpu(), single.sampler.chain.theta.cpu(), rtol=1e-4, atol=1e-5)


def test_an_anchor_is_renewed_after_two_passes_by_default(tmp_path):
    module = fit(tmp_path, 30, gradient="control")
    assert module.sampler.evaluation.every == 2 * toys.N // toys.BATCH
    text = module.sampler.explain()
    assert "a step takes 2.5 gradients of a batch" in text and "renewed every 8 steps" in text


def test_a_run_resumes_to_the_byte(tmp_path):
    """Between two renewals, from a checkpoint of Lightning."""

    def go(steps, path=None):
        torch.manual_seed(0)
        module = toys.module(gradient=bdl.ControlVariate(every=7))
        saver = bdl.SaveLast(tmp_path / "checkpoints", every=10)
        toys.trainer(tmp_path, steps, [saver]).fit(module, toys.batches(2), ckpt_path=path)
        return module

    whole = go(24)
    go(10)
    again = go(24, tmp_path / "checkpoints" / "last.ckpt")
    assert torch.equal(whole.sampler.chain.theta, again.sampler.chain.theta)
    assert torch.equal(whole.sampler.evaluation.anchor, again.sampler.evaluation.anchor)


def test_chains_share_the_batches_of_a_data_loader(tmp_path):
    loader = DataLoader(TensorDataset(*toys.tensors()), batch_size=10)
    module = fit(tmp_path, net=bdl.ChainStack(MLP((toys.D, 5, toys.K)), 2, shared=True), loader=loader)
    assert module.sampler.evaluation.anchored_at == 7


def test_only_a_part_of_a_network(tmp_path):
    """The frozen part may hold dropout and a batch norm, which are then in eval mode."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    module = fit(tmp_path, net=net, chains=None, only="3.*")
    assert module.sampler.evaluation.anchor.shape == (15,)


class Augmented(Dataset):
    def __len__(self):
        return toys.N

    def __getitem__(self, i):
        x, y = toys.tensors()
        return x[i] + torch.randn(toys.D), y[i]


@pytest.mark.parametrize(
    "settings, line",
    [
        ({"net": nn.Sequential(nn.Dropout(0.1), nn.Linear(3, 3))}, "Dropout is random: remove net.0"),
        ({"net": nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3))}, "BatchNorm1d reads the whole batch: remove net.0"),
        ({"loader": DataLoader(Augmented(), batch_size=10)}, "they are augmented"),
        ({"options": {"accumulate_grad_batches": 2}}, "remove accumulate_grad_batches"),
        ({"options": {"gradient_clip_val": 1.0}}, "remove accumulate_grad_batches"),
    ],
)
def test_what_would_give_another_distribution_is_refused(tmp_path, settings, line):
    with pytest.raises(ConfigError, match=line):
        fit(tmp_path, chains=None, **settings)


class Own(L.LightningModule):
    """A module with a `training_step` of its own."""

    def __init__(self, gradient: bool):
        super().__init__()
        self.net, self.gives = MLP((toys.D, 5, toys.K)), gradient

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        sampler = bdl.Sampler(
            self.net.parameters(), bdl.SGLD(), num_data=toys.N, lr=0.01, gradient=bdl.ControlVariate(every=7)
        )
        if self.gives:
            sampler.full_gradient = closure_of(sampler, lambda: self.training_step(toys.tensors(), 0))
        self.sampler = sampler
        return sampler


def test_a_module_with_a_training_step_of_its_own(tmp_path):
    collect = bdl.CollectSamples(bdl.schedules.EveryStep(0, 2), tmp_path / "run")
    module = Own(True)
    toys.trainer(tmp_path, 9, [collect]).fit(module, toys.batches(None))
    assert module.sampler.evaluation.anchored_at == 7
    with pytest.raises(ConfigError, match="set sampler.full_gradient"):
        toys.trainer(tmp_path, 9).fit(Own(False), toys.batches(None))


def test_processes_divide_the_batches(tmp_path, monkeypatch):
    """The mean over two processes of what each returns is the loss of all the data, and its gradient."""
    module = fit(tmp_path, 3)
    whole = module.sampler.full_gradient().clone(), [p.grad.clone() for p in module.sampler.sampled]
    loader = module.trainer.train_dataloader
    loader.slices = lambda: bdl.data.TensorSlices(loader.x, loader.y, batch_size=9)
    module.sampler.host = replace(module.sampler.host, group=object())
    parts = []
    for rank in range(2):
        monkeypatch.setattr("bdl.lightning.full_gradient.dist.get_rank", lambda group, rank=rank: rank)
        monkeypatch.setattr("bdl.lightning.full_gradient.dist.get_world_size", lambda group: 2)
        parts.append((module.sampler.full_gradient().clone(), [p.grad.clone() for p in module.sampler.sampled]))
    assert not torch.equal(parts[0][0], parts[1][0])
    torch.testing.assert_close((parts[0][0] + parts[1][0]) / 2, whole[0])
    for one, two, both in zip(parts[0][1], parts[1][1], whole[1], strict=True):
        torch.testing.assert_close((one + two) / 2, both)
