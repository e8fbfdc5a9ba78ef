"""Tests of `bdl.display` and `bdl.posterior.items`: parts and tables of predictions, and what objects show."""

import pandas as pd
import pytest
import torch
import toys
from by_hand import NUMBERS_X, NUMBERS_Y, X
from rich.table import Table

import bdl
from bdl.display import figures, print_whole
from bdl.errors import ConfigError
from bdl.posterior import stored_outputs
from bdl.posterior.store import SampleStore
from bdl.posterior.verdict import verdict


@pytest.fixture
def values(of_numbers) -> bdl.ValuePrediction:
    return of_numbers.predict(NUMBERS_X)


@pytest.mark.parametrize("limit", [0, 2**30], ids=["in a file", "in memory"])
def test_a_part_of_a_prediction_is_the_prediction_of_a_part(of_numbers, posterior, monkeypatch, limit):
    """Each item has its own distribution, so a part has the numbers that its items had."""
    monkeypatch.setattr(stored_outputs, "OUTPUTS_IN_MEMORY", limit)
    whole = of_numbers.predict(NUMBERS_X)
    part, y = whole[5:15:2], NUMBERS_Y[5:15:2]
    assert len(part) == 5 and len(whole) == len(NUMBERS_X)
    for name in ("mean", "std", "aleatoric", "epistemic"):
        assert torch.equal(getattr(part, name), getattr(whole, name)[5:15:2])
    # An item's sums over networks are the same, but matrix products of other sizes sum in another order
    close = {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(part.quantile(0.3), whole.quantile(0.3)[5:15:2], **close)
    torch.testing.assert_close(part.log_density(y), whole.log_density(NUMBERS_Y)[5:15:2], **close)
    torch.testing.assert_close(part.crps(y), whole.crps(NUMBERS_Y)[5:15:2], **close)
    torch.testing.assert_close(
        part.rescaled(2.0, 3.0).interval(0.5)[0], whole.rescaled(2.0, 3.0).interval(0.5)[0][5:15:2], **close
    )
    classes = posterior.predict(X)
    assert all(torch.equal(values, vars(classes)[name][5:15:2]) for name, values in vars(classes[5:15:2]).items())


def test_items_are_chosen_as_in_a_list(posterior):
    prediction = posterior.predict(X[:6])
    mask = torch.tensor([True, False, False, True, False, True])
    for items, places in [(-1, [5]), ([0, 3, 5], [0, 3, 5]), (mask, [0, 3, 5]), (mask.numpy(), [0, 3, 5]), ([], [])]:
        assert torch.equal(prediction[items].probs, prediction.probs[places])
    assert [len(one) for one in prediction] == [1] * 6
    for wrong in ("a", [7], mask[:4], (slice(None), 0), 0.5, [[0]]):
        with pytest.raises(ConfigError, match="does not choose among 6 items"):
            prediction[wrong]
    with pytest.raises(IndexError, match="item 6 of a prediction of 6 items"):
        prediction[6]


def test_a_table_has_a_row_for_each_item(posterior, values):
    prediction = posterior.predict(X)
    frame = prediction.to_frame(["a", "b", "c"])
    assert list(frame) == ["class", "p_a", "p_b", "p_c", "entropy", "epistemic"] and len(frame) == len(X)
    assert frame["class"].tolist() == ["abc"[k] for k in prediction.probs.argmax(1)]
    assert torch.equal(torch.tensor(frame["p_b"]), prediction.probs[:, 1].double())
    with pytest.raises(ConfigError, match="2 names do not fit a prediction of 3 classes"):
        prediction.to_frame(["a", "b"])
    numbers = values.to_frame()
    assert list(numbers) == ["mean", "std", "aleatoric", "epistemic", "q05", "q50", "q95"]
    assert torch.equal(torch.tensor(numbers["q95"]), values.quantile(0.95)[:, 0].double())


def test_elements_and_labels_have_rows_and_columns():
    p = torch.linspace(0.1, 0.9, 24).view(2, 3, 4)
    pixels = bdl.Prediction(p, *torch.zeros(3, 2, 3), torch.zeros(2, 3, 4)).to_frame()
    assert isinstance(pixels.index, pd.MultiIndex) and pixels.loc[(1, 2), "p_3"] == p[1, 2, 3].double()
    labels = bdl.LabelPrediction(*p[:, 0].expand(5, 2, 4)).to_frame(list("wxyz"))
    assert len(labels) == 2 and labels["epistemic_y"].tolist() == p[:, 0, 2].double().tolist()


def test_predictions_show_their_first_items(posterior, values):
    text = repr(posterior.predict(X))
    assert text.startswith("Prediction of 40 items over 3 classes") and text.endswith("... and 35 more")
    assert len(text.splitlines()) == 8
    assert "more" not in repr(values[:3]) and "q95" in repr(values[:3])
    html = values._repr_html_()
    assert html.count("<tr") == 6 and "... and 35 more" in html  # with the line of names
    assert "for 0 items" in repr(values[:0])


def test_a_posterior_shows_what_it_is_and_what_users_need(run, posterior):
    text = repr(posterior)
    assert text.startswith("Posterior of 16 networks from 2 chains") and str(run) in text
    assert "exp(-U/T), T = 1, N = 40" in text and "2 to 16" in text
    posterior.predict(X)
    assert "CategoricalNLL" in text and "CategoricalNLL" in repr(posterior)
    assert set(dir(posterior)) == {
        "as_module", "cache", "chains", "device", "distil", "draws", "evaluate", "evaluate_all", "function",
        "influence", "kind", "likelihood", "load", "moments", "net", "outputs", "predict", "samples", "save", "stack",
        "stacking", "stream", "target", "target_temperature", "thin", "thinning", "to_arviz", "weights",
    }  # fmt: skip


def test_a_store_shows_its_samples_and_never_raises(run, tmp_path):
    assert "16 networks in 8 files" in repr(SampleStore(run)) and "steps    2 to 16" in repr(SampleStore(run))
    assert "no samples in" in repr(SampleStore(tmp_path))


def test_a_sampler_shows_its_settings_and_a_verdict_its_answers():
    net = bdl.ChainStack(toys.plain(), 2)
    sampler = bdl.Sampler(net.parameters(), bdl.SGHMC(0.5), num_data=40, lr=0.1, chains=2)
    text = repr(sampler)
    assert text.startswith("Sampler by SGHMC(friction=0.5)") and "N = 40" in text and "2, of 38 parameters" in text
    assert "<caption>Sampler by SGHMC" in sampler._repr_html_() and "weighting" not in text
    empty = verdict({})
    assert repr(empty).splitlines()[0] == empty.line and "Would another run of this budget" in repr(empty)


def test_a_table_is_printed_whole_in_a_pipe(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    print_whole(Table(*(f"a long heading {i}" for i in range(12))))
    assert "a long heading 11" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "text"), [(1386.2, "1,390"), (999.7, "1,000"), (-13862, "-13,900"), (0.1234, "0.123")]
)
def test_a_number_that_people_write_out_has_no_power_of_ten(value, text):
    assert figures(value) == text
