"""Tests of `bdl.posterior.inputs`: a prediction is the same in whatever form its inputs come."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
import toys
from by_hand import X, Y
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.errors import ConfigError

FORMS = {
    "float64 array": lambda x: x.double().numpy(),
    "float32 array": lambda x: x.numpy(),
    "list": lambda x: x.tolist(),
    "list of arrays": lambda x: list(x.numpy()),
    "table": lambda x: pd.DataFrame(x.numpy()),
    "float64 tensor": lambda x: x.double(),
    "float16 tensor": lambda x: x.half(),
    "float64 loader": lambda x: DataLoader(TensorDataset(x.double(), torch.zeros(len(x))), batch_size=7),
    "tuple of an array": lambda x: (x.numpy(),),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_inputs_gives_the_same_prediction(posterior, form):
    x = X.half().float()  # no form loses digits of such numbers
    expected = posterior.predict(x).probs
    torch.testing.assert_close(posterior.predict(FORMS[form](x)).probs, expected)
    torch.testing.assert_close(posterior.moments(FORMS[form](x))[0], posterior.moments(x)[0])


def test_whole_numbers_are_numbers_unless_network_looks_them_up(posterior, tmp_path):
    whole = X.round()
    expected = posterior.predict(whole).probs
    for form in (whole.int().numpy(), whole.int().tolist(), pd.DataFrame(whole.short().numpy())):
        torch.testing.assert_close(posterior.predict(form).probs, expected)
    net = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 3))
    tokens = torch.randint(9, (40, 2), generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(tokens, Y), batch_size=20)
    looked_up = bdl.sample(net, bdl.CategoricalNLL(), loader, tmp_path, steps=2, lr=0.1, accelerator="cpu")
    expected = looked_up.predict(tokens).probs
    for form in (tokens.numpy(), tokens.int().numpy(), tokens.tolist()):
        torch.testing.assert_close(looked_up.predict(form).probs, expected)


@pytest.mark.parametrize(
    "data, words",
    [
        ([["a", "b", "c"]], "hold <U1, not numbers"),
        ([[1.0, 2.0, 3.0], [1.0]], "give all rows the same length"),
        (pd.DataFrame({"age": [1.0], "town": ["Oslo"], "height": [2.0]}), "column town of the inputs holds no numbers"),
        (np.array([[object()] * 3]), "hold object, not numbers"),
        (np.zeros((4, 5)), r"does not take the inputs float32 \(1, 5\): mat1 and mat2 shapes cannot be multiplied"),
        (torch.zeros(4, 5), "give items of the shape and the dtype that the network was trained on"),
        (torch.zeros(4, 3, dtype=torch.uint8), "the dtype that the network was trained on"),
        ([torch.zeros(4, 5)], "MLP does not take the inputs"),
    ],
)
def test_unfit_inputs_get_one_line(posterior, data, words):
    with pytest.raises(ConfigError, match=words) as error:
        posterior.predict(data)
    assert "\n" not in str(error.value)


def test_a_loss_that_depends_on_outputs_refuses_unfit_inputs_too(run):
    with pytest.raises(ConfigError, match="does not take the inputs"):
        bdl.Posterior.load(run, toys.plain(), likelihood=nn.CrossEntropyLoss()).predict(torch.zeros(4, 5))


def test_the_table_of_a_run_on_a_table_is_encoded_first(tmp_path):
    toys.sample(tmp_path, 4)
    posterior, table = bdl.Posterior.load(tmp_path, toys.plain()), pd.DataFrame(X.numpy())
    posterior.predict(table)
    (tmp_path / "preprocessing.json").write_text(json.dumps({"kind": "table"}))
    with pytest.raises(ConfigError, match="predict_table"):
        posterior.predict(table)
    for damaged in ("{", "[" * 100_000):
        (tmp_path / "preprocessing.json").write_text(damaged)
        with pytest.raises(ConfigError, match="preprocessing.json is damaged .*: restore it"):
            posterior.predict(table)


def test_an_error_of_the_network_itself_is_not_blamed_on_inputs(posterior, monkeypatch):
    """Here batches of more than one item fail, for a reason that has nothing to do with their shape."""

    def fail(*args, **kwargs):
        raise RuntimeError("out of luck")

    monkeypatch.setattr("bdl.engine.forward.Forward.evaluate", fail)
    with pytest.raises(RuntimeError, match="out of luck"):
        posterior.predict(X)
