"""Tests of `bdl.run.sampled_network`: a network or what builds it, and what energies over all the data cost."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import bdl
from bdl.errors import ConfigError, DivergedError
from bdl.schedules import EveryStep

torch.manual_seed(0)
X = torch.randn(40, 3)
Y = (X[:, 0] > 0).long()


class Token(nn.Module):
    """Has a bare parameter of random values, as the class token of a transformer."""

    def __init__(self):
        super().__init__()
        self.token, self.head = nn.Parameter(torch.randn(3)), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(x + self.token)


def sample(folder, net, x=X, batch=10, **arguments):
    loader = DataLoader(TensorDataset(x, Y), batch, shuffle=True)
    arguments = {"steps": 8, "lr": 0.01, "accelerator": "cpu", "keep": EveryStep(4, 1), **arguments}
    return bdl.sample(net, nn.CrossEntropyLoss(), loader, folder, **arguments)


@pytest.mark.parametrize("chains", [None, 2])
@pytest.mark.parametrize("build", [Token, lambda: Token(), Token()])
def test_a_network_or_what_builds_it_is_sampled(tmp_path, build, chains):
    """Every way out that the refusal of a bare parameter names."""
    if isinstance(build, nn.Module) and chains:
        with pytest.raises(ConfigError, match='a function that builds the network .*, or start="given"'):
            sample(tmp_path, build, chains=chains)
        assert sample(tmp_path, build, chains=chains, start="given").samples == 8
        return
    posterior = sample(tmp_path, build, chains=chains)
    assert posterior.samples == 4 * (chains or 1)
    assert posterior.predict(X).probs.shape == (40, 2)
    if chains:
        first = posterior.read_record(posterior.records[0])["token"]
        assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("asked, batch, measured", [(None, 10, False), (True, 10, True), (False, 40, False)])
def test_energies_of_all_the_data_are_measured_where_they_cost_little_or_are_asked_for(
    tmp_path, capsys, asked, batch, measured
):
    posterior = sample(tmp_path, nn.Linear(3, 2), batch=batch, full_energy=asked)
    assert [r.energy_full is not None for r in posterior.records] == [measured] * 4
    dear = "energies over all 40 items at every kept state would add 67% of the work" in capsys.readouterr().out
    assert dear == (asked is not False)


def test_energies_that_cost_little_are_measured_without_a_word(tmp_path, capsys):
    posterior = sample(tmp_path, nn.Linear(3, 2), batch=40, keep=EveryStep(4, 4))
    assert all(r.energy_full is not None for r in posterior.records)
    assert "energies over all" not in capsys.readouterr().out


def test_numbers_that_are_not_finite_before_the_first_step_do_not_blame_lr(tmp_path):
    bad = X.clone()
    bad[3, 1] = float("nan")
    with pytest.raises(DivergedError, match="not finite at step 0: the data, the weights") as error:
        sample(tmp_path, nn.Linear(3, 2), bad, batch=40)
    assert "lr" not in str(error.value)


@pytest.mark.parametrize("steps, kept", [(300, 75), (200, 100), (1000, 100), (3, 2)])
def test_the_default_rule_keeps_at_most_a_hundred_states_of_the_second_half(tmp_path, steps, kept):
    assert sample(tmp_path, nn.Linear(3, 2), steps=steps, keep=None, batch=40).samples == kept


class Short(Dataset):
    """Says that it has more items than it has."""

    def __len__(self):
        return 60

    def __getitem__(self, i):
        return ([(torch.ones(3), torch.ones(1))] * 40)[i]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_length_beyond_the_items_is_told(tmp_path, shuffle):
    with pytest.raises(
        bdl.ConfigError, match="Short says that it has 60 items, and has no item 59 .*correct its __len"
    ):
        bdl.sample(
            nn.Linear(3, 1), bdl.GaussianNLL(1.0), DataLoader(Short(), 10, shuffle=shuffle), tmp_path, steps=5, lr=0.1
        )
