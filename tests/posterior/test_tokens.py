"""Tokens: perplexity, entropies, the coloured text. Tests of `bdl.posterior.outputs`, `bdl.posterior.report.text`."""

import math
import shutil

import pytest
import torch
import toys

import bdl
from bdl.data import TextDataModule
from bdl.models import GPT
from bdl.posterior.report.text import TOKENS_SHOWN, coloured

CONTEXT = 8


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(data, posterior) of a GPT over a text of few letters, four samples of each of two chains."""
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "t.txt").write_text("abacabadabacabae" * 200)
    data = TextDataModule(folder / "t.txt", context=CONTEXT, batch_size=20, chains=2)
    net = GPT(data.num_classes, CONTEXT, width=8, layers=1, heads=2)
    module = toys.module(net, 2, num_data=data.num_data, lr=0.3)
    collect = bdl.CollectSamples(bdl.schedules.EveryStep(4, 4), folder / "run")
    toys.trainer(folder / "run", 20, [collect]).fit(module, datamodule=data)
    return data, bdl.Posterior.load(folder / "run", net)


def test_perplexity_and_entropies_are_those_of_the_prediction(run):
    data, posterior = run
    evaluation = posterior.evaluate(data.test_dataloader())
    x, y = data.tensors("test")
    prediction, metrics = posterior.predict(x), evaluation.metrics()
    nll = -prediction.probs.gather(-1, y.unsqueeze(-1)).log().mean().item()
    assert evaluation.items == y.numel()
    assert metrics["bma/nll"] == pytest.approx(nll, rel=1e-5)
    assert metrics["bma/perplexity"] == pytest.approx(math.exp(nll), rel=1e-5)
    for name in ("entropy", "aleatoric", "epistemic"):
        of_tokens = getattr(prediction, name).flatten()
        assert metrics[f"bma/{name}"] == pytest.approx(of_tokens.mean().item(), abs=1e-6)
        torch.testing.assert_close(evaluation.uncertainty[name].float(), of_tokens, atol=1e-5, rtol=1e-4)
    assert float(evaluation.uncertainty["epistemic"].max()) > 1e-4


def test_text_of_a_report_has_its_darkest_token_most_uncertain(run):
    data, posterior = run
    evaluation = posterior.evaluate(data.test_dataloader())
    words = coloured(evaluation, data.pieces)
    y = data.tensors("test")[1].flatten()[:TOKENS_SHOWN]
    assert "".join(word.piece for word in words) == "".join(data.pieces(y.tolist()))
    darkest = max(range(len(words)), key=lambda i: float(words[i].shade))
    assert (
        darkest == int(evaluation.uncertainty["epistemic"][:TOKENS_SHOWN].argmax())
        or len({w.shade for w in words}) < 20
    )
    p = evaluation.bma[darkest, y[darkest]].item()
    assert words[darkest].title.startswith(f"p = {p:.3f}, ")
    assert coloured(evaluation, lambda tokens: None) == []


def test_the_report_explains_the_scores_that_it_shows(run, tmp_path):
    """Those of tokens have a perplexity, and no Brier score."""
    data, posterior = run
    bdl.report(shutil.copytree(posterior.stores[0].run_dir, tmp_path / "run"), posterior.net, data)
    text = (tmp_path / "run" / "report.html").read_text()
    assert "A perplexity of 5 is the uncertainty of a fair choice among 5 tokens" in text and "Brier score" not in text


def test_classes_of_numbers_have_no_perplexity(tmp_path):
    x, y = toys.tensors()
    toys.sample(tmp_path)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 10)
    posterior = bdl.Posterior.load(tmp_path, bdl.models.MLP((toys.D, 5, toys.K)))
    assert not [name for name in posterior.evaluate(loader).metrics() if "perplexity" in name or "epistemic" in name]
