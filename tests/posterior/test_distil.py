"""Tests of `bdl.contrib.distillation.distil`, `.training`, `.student` and `.scores`.

The divergence is compared with torch.distributions; a student of one network can be that network; a student of an
average is nearer to it than any of its networks, for every kind of prediction.
"""

import math
from dataclasses import replace

import pytest
import torch
import toys
from by_hand import NUMBERS_X, NUMBERS_Y, X, Y
from torch.distributions import Bernoulli, Categorical, Independent, MixtureSameFamily, Normal, kl_divergence

import bdl
from bdl.contrib.distillation.scores import distances
from bdl.contrib.distillation.student import ClassOutputs, LabelOutputs, ValueOutputs, numbers_kept, outputs_for
from bdl.data import TensorBatches, TensorSlices
from bdl.errors import ConfigError

QUICK = bdl.Distillation(steps=600, lr=0.01, mixtures=1)


def start(*sizes: int) -> bdl.models.MLP:
    torch.manual_seed(0)
    return bdl.models.MLP(sizes)


def predictions(n: int = 6):
    """A prediction of classes, one of labels and one of numbers, of two networks that disagree, and their outputs."""
    from bdl.posterior.prediction import prediction_of

    torch.manual_seed(1)
    laws = {3: bdl.CategoricalNLL(), 2: bdl.BernoulliNLL(), 4: bdl.HeteroscedasticNLL()}
    for width, law in laws.items():
        yield prediction_of([(torch.randn(2, n, width), torch.ones(2))], law)


def test_the_divergence_is_that_of_torch_distributions():
    """KL(teacher | student) of the law, plus that of the epistemic share as a Bernoulli law, in nats."""
    classes, labels, numbers = predictions()
    torch.manual_seed(2)

    def share(part, whole, logits):
        return kl_divergence(Bernoulli(part / whole), Bernoulli(logits=logits))

    kind, out = ClassOutputs(4, 1), torch.randn(6, 4)
    wanted = kl_divergence(Categorical(classes.probs), Categorical(logits=out[:, :3]))
    wanted = wanted + share(classes.epistemic, classes.entropy, out[:, 3])
    torch.testing.assert_close(kind.divergence(out, kind.lesson(classes)), wanted)

    kind, out = LabelOutputs(4, 2), torch.randn(6, 4)
    wanted = kl_divergence(Bernoulli(labels.probs), Bernoulli(logits=out[:, :2]))
    wanted = (wanted + share(labels.epistemic, labels.entropy, out[:, 2:])).sum(-1)
    torch.testing.assert_close(kind.divergence(out, kind.lesson(labels)), wanted)

    # For one component E[-log q] depends on the teacher's moments alone, so that the teacher's own law drops out here
    kind, outs = ValueOutputs(6, 2), torch.randn(2, 6, 6)
    wanted = []
    for out in outs:
        of_law = kl_divergence(Normal(numbers.mean, numbers.std), Normal(out[:, :2], (out[:, 2:4] / 2).exp()))
        shares = share(numbers.epistemic.square(), numbers.std.square(), out[:, 4:])
        wanted.append((of_law + shares).sum(-1))
    found = [kind.divergence(out, kind.lesson(numbers)) for out in outs]
    torch.testing.assert_close(found[0] - found[1], wanted[0] - wanted[1], rtol=1e-4, atol=1e-4)


def test_divergence_of_a_mixture_is_that_of_torch_distributions():
    """Log densities of the student against MixtureSameFamily, those of the teacher against its own log density."""
    *_, numbers = predictions()
    torch.manual_seed(2)
    kind, out = ValueOutputs(12, 0, 3), torch.randn(6, 12)
    points, log_p = numbers.mixture.points(32)
    mean, log_variance = out.view(6, 3, 4).double().chunk(2, -1)
    parts = Independent(Normal(mean, (log_variance / 2).exp()), 1)
    student = MixtureSameFamily(Categorical(torch.ones(6, 3).double()), parts)
    wanted = (log_p - torch.stack([student.log_prob(y) for y in points.unbind(1)], 1)).mean(1)
    torch.testing.assert_close(kind.divergence(out, kind.lesson(numbers)).double(), wanted, rtol=1e-4, atol=1e-4)


def test_student_with_component_for_each_network_can_be_average():
    torch.manual_seed(1)
    outputs = torch.randn(2, 6, 4)
    from bdl.posterior.prediction import prediction_of

    numbers = prediction_of([(outputs, torch.ones(2))], bdl.HeteroscedasticNLL())
    share = (numbers.epistemic / numbers.std).square().logit()
    kind, same = ValueOutputs(10, 2, 2), torch.cat([*outputs, share], -1)
    assert kind.divergence(same, kind.lesson(numbers)).abs().max() < 1e-5
    student = kind.prediction(same)
    y = torch.randn(6, 2)
    torch.testing.assert_close(student.log_density(y), numbers.log_density(y))
    for name in ("mean", "std", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(student, name), getattr(numbers, name))


def test_outputs_that_say_what_the_teacher_says_predict_it():
    """The logits of the teacher's own numbers give its prediction back, with both parts of the uncertainty."""
    classes, labels, numbers = predictions()
    outputs = torch.cat([classes.probs.log(), (classes.epistemic / classes.entropy).logit().unsqueeze(-1)], -1)
    same = ClassOutputs(4, 1).prediction(outputs)
    for name in ("probs", "entropy", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(same, name), getattr(classes, name))
    assert same.std.isnan().all()
    outputs = torch.cat([labels.probs.logit(), (labels.epistemic / labels.entropy).logit()], -1)
    torch.testing.assert_close(LabelOutputs(4, 2).prediction(outputs).epistemic, labels.epistemic)
    share = (numbers.epistemic / numbers.std).square().logit()
    same = ValueOutputs(6, 2).prediction(torch.cat([numbers.mean, 2 * numbers.std.log(), share], -1))
    for name in ("mean", "std", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(same, name), getattr(numbers, name))
    assert ValueOutputs(4, 0).prediction(torch.randn(5, 4)).epistemic.isnan().all()
    assert ClassOutputs(3, 0).prediction(torch.randn(5, 3)).aleatoric.isnan().all()


def test_a_student_is_nearer_to_the_average_than_its_networks(posterior):
    """Each network alone is a student that has learnt nothing of the others; the labels play no part."""
    found = posterior.distil(start(3, 20, 4), X, test=TensorSlices(X, Y), settings=QUICK)
    average = posterior.predict(X)
    alone = []
    for sample in posterior.stream():
        net = toys.plain()
        net.load_state_dict(sample.tensors)
        with torch.no_grad():
            alone.append(distances(average, ClassOutputs(3, 0).prediction(net(X)))["divergence"])
    assert found.scores["distance/divergence"] < min(alone) / 4
    assert found.scores["student/epistemic"] == pytest.approx(found.scores["teacher/epistemic"], rel=0.3)
    student = found.predict(X)
    assert distances(average, student)["divergence"] == pytest.approx(found.scores["distance/divergence"], abs=1e-7)
    other_labels = TensorSlices(X, (Y + 1) % 3)
    again = posterior.distil(start(3, 20, 4), other_labels, settings=QUICK)
    assert all(torch.equal(a, b) for a, b in zip(found.net.parameters(), again.net.parameters(), strict=True))


def test_scores_are_those_of_the_evaluation(posterior):
    """The teacher's against `Posterior.evaluate`; what a student without shares does not keep is not scored."""
    test = TensorSlices(X, Y)
    scores = posterior.distil(start(3, 5, 3), X, test=test, settings=bdl.Distillation(steps=3)).scores
    metrics = posterior.evaluate(test).metrics()
    for name in ("accuracy", "nll", "ece"):
        assert scores[f"teacher/{name}"] == pytest.approx(metrics[f"bma/{name}"], rel=1e-5)
    assert "student/entropy" in scores and "student/epistemic" not in scores


def test_a_student_of_numbers_keeps_the_mean_and_both_deviations(of_numbers):
    test = TensorSlices(NUMBERS_X, NUMBERS_Y)
    found = of_numbers.distil(start(3, 20, 3), NUMBERS_X, test=test, settings=QUICK)
    average, student = of_numbers.predict(NUMBERS_X), found.predict(NUMBERS_X)
    # Beside a student that has learnt nothing: the mean over items of each number
    for name in ("mean", "aleatoric", "epistemic"):
        of_average = getattr(average, name)
        apart = (getattr(student, name) - of_average).square().mean()
        assert apart < 0.25 * of_average.var(unbiased=False), name
    assert found.scores["teacher/rmse"] == pytest.approx(of_numbers.evaluate(test).metrics()["bma/rmse"], rel=1e-5)
    assert found.scores["student/nll"] == pytest.approx(-student.log_density(NUMBERS_Y).mean().item(), rel=1e-4)


def test_the_order_of_a_shuffling_loader_does_not_matter(posterior):
    """What the average says of an item stays with the item: otherwise a student learns the mean over items at best."""
    average = posterior.predict(X)
    found = posterior.distil(start(3, 20, 4), TensorBatches(X, Y, 10, seed=3), settings=QUICK)
    mean = average.probs.mean(0).log().expand(len(X), 3)
    of_mean = distances(average, ClassOutputs(3, 0).prediction(mean))["divergence"]
    assert distances(average, found.predict(X))["divergence"] < of_mean / 10


def test_one_seed_is_one_student_and_the_global_stream_stays(posterior):
    settings, state = bdl.Distillation(steps=20), torch.random.get_rng_state()
    net = torch.nn.Sequential(start(3, 5), torch.nn.Dropout(0.5), torch.nn.Linear(5, 3))
    before = [p.clone() for p in net.parameters()]
    state = torch.random.get_rng_state()
    first, second = (posterior.distil(net, X, settings=settings) for _ in range(2))
    other = posterior.distil(net, X, settings=bdl.Distillation(steps=20, seed=1))
    weights = [torch.cat([p.flatten() for p in d.net.parameters()]) for d in (first, second, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert not first.net.training


def test_a_student_is_saved_and_loaded(posterior, tmp_path):
    found = posterior.distil(start(3, 5, 4), X, test=TensorSlices(X, Y), settings=bdl.Distillation(steps=5))
    found.save(tmp_path / "student.ckpt", note="ours")
    saved = torch.load(tmp_path / "student.ckpt", weights_only=True)
    assert saved["note"] == "ours" and saved["scores"] == dict(found.scores)
    loaded = bdl.Distilled.load(tmp_path / "student.ckpt", bdl.models.MLP((3, 5, 4)))
    assert torch.equal(loaded.predict(X).epistemic, found.predict(X).epistemic)
    assert "8 networks" in repr(loaded) or f"{posterior.samples} networks" in repr(loaded)
    with pytest.raises(ConfigError, match="holds no student of this network"):
        bdl.Distilled.load(tmp_path / "student.ckpt", bdl.models.MLP((3, 6, 4)))


def test_tokens_are_rows(tmp_path):
    """A student of outputs (n, T, K) with a share for each token; whole numbers have no mixtures."""
    (tmp_path / "t.txt").write_text("abacabadabacabae" * 100)
    data = bdl.data.TextDataModule(tmp_path / "t.txt", context=8, batch_size=20, chains=2)
    net = bdl.models.GPT(data.num_classes, 8, width=8, layers=1, heads=2)
    module = toys.module(net, 2, num_data=data.num_data, lr=0.3)
    collect = bdl.CollectSamples(bdl.schedules.EveryStep(4, 4), tmp_path / "run")
    toys.trainer(tmp_path / "run", 12, [collect]).fit(module, datamodule=data)
    posterior = bdl.Posterior.load(tmp_path / "run", net)
    found = posterior.distil(net, data.slices("train"), test=data.slices("test"), settings=bdl.Distillation(steps=30))
    assert found.predict(data.tensors("test")[0]).probs.shape == posterior.predict(data.tensors("test")[0]).probs.shape
    metrics = posterior.evaluate(data.slices("test")).metrics()
    assert found.scores["teacher/nll"] == pytest.approx(metrics["bma/nll"], rel=1e-4)
    assert math.isfinite(found.scores["student/nll"])


@pytest.mark.parametrize("outputs, words", [(2, "2 outputs: give it 3, the logits, or 4"), (5, "5 outputs")])
def test_outputs_that_do_not_fit_are_refused(posterior, outputs, words):
    with pytest.raises(ConfigError, match=words):
        posterior.distil(start(3, outputs), X)


def test_rows_are_crossed_column_by_column():
    """A crossing has each column from one of two rows, and a mixture lies between two; held-out rows are in neither."""
    x = torch.arange(50.0).view(50, 1) + torch.tensor([0.0, 100.0, 200.0, 300.0])
    shown, held_out = bdl.Distillation(mixtures=1, crossings=2).lessons(x)
    assert held_out == 5 and shown.shape == (50 + 45 * 3, 4)
    assert torch.equal(shown[:50].sort(0).values, x)
    kept, made = set(shown[5:50, 0].tolist()), shown[50:]
    rows = made - torch.tensor([0.0, 100.0, 200.0, 300.0])  # the number of the row that each column is from
    mixed, crossed = rows[:45], rows[45:]
    torch.testing.assert_close(mixed, mixed[:, :1].expand(45, 4), rtol=0, atol=1e-4)
    assert set(crossed.flatten().tolist()) <= kept
    counts = [len(set(row)) for row in crossed.tolist()]
    assert set(counts) == {1, 2}


def test_large_tables_have_one_crossing_a_row_images_have_none(monkeypatch):
    monkeypatch.setattr("bdl.contrib.distillation.training.MADE", 100)
    every = bdl.Distillation(mixtures=1, crossings=12)
    assert len(every.lessons(torch.randn(40, 3))[0]) == 40 + 36 + 2 * 36
    assert len(every.lessons(torch.randn(400, 3))[0]) == 400 + 360 + 360
    assert len(every.lessons(torch.randn(40, 3, 2, 2))[0]) == 40 + 36
    assert len(every.lessons(torch.zeros(40, 3).long())[0]) == 40


def test_the_outputs_of_a_student_say_how_many_components_it_has():
    law = bdl.GaussianNLL(1.0)
    for width, shares, components in ((4, 0, 1), (6, 2, 1), (12, 0, 3), (14, 2, 3)):
        assert outputs_for(law, (1, 2), (1, width)) == ValueOutputs(width, shares, components)
    for width in (2, 5, 9):
        with pytest.raises(ConfigError, match=f"{width} outputs: give it 4, the means and log variances, for each"):
            outputs_for(law, (1, 2), (1, width))


def test_what_has_no_simple_average_is_refused():
    with pytest.raises(ConfigError, match="predicts counts"):
        numbers_kept(bdl.PoissonNLL(), 1)
    *_, numbers = predictions()
    with pytest.raises(ConfigError, match="a variance of 0 or infinity for 6 items"):
        ValueOutputs(4, 0).lesson(replace(numbers, std=numbers.std * math.inf))


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"steps": 0}, "steps must be a whole number of at least 1"),
        ({"mixtures": -1}, "mixtures"),
        ({"crossings": 1.5}, "crossings"),
        ({"lr": 0.0}, "lr must be > 0"),
        ({"weight_decay": 1000.0}, "weight_decay"),
        ({"val_fraction": 1.0}, "val_fraction"),
    ],
)
def test_wrong_settings_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        bdl.Distillation(**settings)
