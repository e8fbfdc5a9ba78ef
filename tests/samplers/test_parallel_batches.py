"""Tests of `bdl.samplers.parallel` and `batch_sizes`: two processes whose batches differ in size along an epoch."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from forked import process
from test_batch_sizes import LR, NORMAL, data, sampler_of
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from bdl.errors import ConfigError

SIZE, PASSES = 10, 4


def net_of() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(2, 1, dtype=torch.float64)


def epochs(rank: int, n: int, unequal: bool) -> dict:
    """What a plain loop under ddp does: each rank's own part of the items, and the mean of the ranks' gradients."""
    x, y = data(n)
    items, net = TensorDataset(x, y), net_of()
    sampler = sampler_of(net, n)
    sampler.chain.host = replace(sampler.chain.host, group=dist.group.WORLD)
    mine = DistributedSampler(items, 2, rank, shuffle=False)
    part = Subset(items, range(0, 12) if rank else range(12, n)) if unequal else items
    loader = DataLoader(part, SIZE, sampler=None if unequal else mine)
    energies, moves = [], []
    for _ in range(PASSES):
        before = sampler.chain.theta.clone()
        for xb, yb in loader:

            def closure(xb=xb, yb=yb):
                sampler.zero_grad()
                loss = NORMAL(net(xb), yb).mean()
                loss.backward()
                for p in net.parameters():
                    dist.all_reduce(p.grad)
                    p.grad.div_(2)
                return loss

            sampler.step(closure, items=len(xb))
            energies.append(sampler.energy.item())
        moves.append((before - sampler.chain.theta) / LR)
    return {"energies": torch.tensor(energies, dtype=torch.float64).view(PASSES, -1), "moves": torch.stack(moves)}


def work(rank: int, folder: str, n: int, unequal: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    try:
        said = epochs(rank, n, unequal)
    except ConfigError as error:
        said = str(error)
    torch.save(said, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def by_two(folder, n: int, unequal: bool = False) -> list:
    begun = [process(work, rank, str(folder), n, unequal) for rank in (0, 1)]
    for each in begun:
        each.join()
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


@pytest.mark.parametrize("n", [62, 60, 42])
def test_an_epoch_of_two_processes_has_the_gradient_of_all_the_data(tmp_path, n):
    """Halves of 31, 30 and 21 rows: a last batch of one row on each rank counts for one row, not for ten."""
    x, y = data(n)
    net, ranks = net_of(), by_two(tmp_path, n)
    loss = NORMAL(net(x), y).mean()
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])
    for key in ranks[0]:
        assert torch.equal(ranks[0][key], ranks[1][key])
    for energies, move in zip(ranks[0]["energies"][1:], ranks[0]["moves"][1:], strict=True):
        assert energies.mean().item() == pytest.approx(n * loss.item(), rel=1e-6)
        torch.testing.assert_close(move / len(energies), gradient, rtol=1e-5, atol=1e-7)


def test_batches_that_differ_between_processes_are_refused(tmp_path):
    line = "the batches of one step hold 2 items on one rank and 10 on another"
    assert [said.startswith(line) for said in by_two(tmp_path, 62, unequal=True)] == [True, True]
