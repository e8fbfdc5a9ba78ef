"""Tests of `bdl.lightning.module`, `.refuse` and `.host`, and of `bdl.engine.losses` and `bdl.samplers.chain`.

BayesianModule, and any other LightningModule that returns a Sampler.
"""

import warnings

import lightning as L
import pytest
import torch
import torch.nn.functional as F
import toys
from lightning.pytorch.callbacks import LearningRateMonitor
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from toys import BATCH, K, N

import bdl
from bdl.data import WorkerBatches
from bdl.errors import BdlWarning, ConfigError
from bdl.lightning.refuse import check_trainer
from bdl.models import MLP

SILENT = dict(
    accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False
)  # fmt: skip


def dataloader(**arguments) -> DataLoader:
    return DataLoader(TensorDataset(*toys.tensors()), batch_size=BATCH, **arguments)


def weighted(**arguments) -> bdl.AdaptiveWeight:
    return bdl.AdaptiveWeight(low=10.0, high=200.0, bins=10, **arguments)


class UserModule(L.LightningModule):
    """A module that a user may have: it has no base class of bdl."""

    def __init__(self, scheduler: bool = False):
        super().__init__()
        self.model, self.scheduler = nn.Linear(toys.D, K), scheduler

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self.model(x), y)

    def forward(self, x):
        return self.model(x)

    def configure_optimizers(self):
        sampler = bdl.Sampler(self.parameters(), bdl.SGLD(), num_data=N, lr=0.1)
        if not self.scheduler:
            return sampler
        decay = torch.optim.lr_scheduler.ExponentialLR(sampler, 0.5)
        return {"optimizer": sampler, "lr_scheduler": {"scheduler": decay, "interval": "step"}}


@pytest.mark.parametrize("chains", [None, 1, 3])
def test_a_net_or_a_stack_is_sampled(tmp_path, chains):
    module = toys.module(chains=chains)
    before = [p.clone() for p in module.net.parameters()]
    toys.trainer(tmp_path, 5).fit(module, toys.batches(chains))
    assert module.sampler.steps == 5
    assert all((p != b).any() for p, b in zip(module.net.parameters(), before, strict=True))
    assert module.sampler.energy.shape == (() if chains is None else (chains,))
    assert module(toys.tensors()[0]).shape == ((N, K) if chains is None else (chains, N, K))


@pytest.mark.parametrize("chains", [None, 2])
@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss()], ids=["per item", "torch"])
def test_full_loss_is_the_loss_over_all_the_data(tmp_path, chains, loss):
    module = toys.module(MLP((3, 5, 3), dropout=0.5), chains, loss)
    toys.trainer(tmp_path, 3).fit(module, toys.batches(chains))
    x, y = toys.tensors()
    module.train()
    full = module.full_loss()
    assert module.training and all(m.training for m in module.modules())
    module.eval()
    outputs = module(x).view(-1, N, K)
    expected = torch.stack([F.cross_entropy(o, y) for o in outputs]).double()
    torch.testing.assert_close(full.view(-1), expected, rtol=1e-5, atol=1e-6)
    prior = sum(p.square().view(chains or 1, -1).sum(1) for p in module.net.parameters()) / 2
    torch.testing.assert_close(module.sampler.full_energy().view(-1), N * expected + prior, rtol=1e-5, atol=1e-4)


class Noise:
    """An augmentation that replaces items by noise."""

    def draw(self, count, shape, generator):
        return torch.randn(count, *shape, generator=generator)

    def __call__(self, x, decisions):
        return 100 * decisions


@pytest.mark.parametrize("workers", [None, 0])
def test_full_loss_sees_the_items_as_inputs_and_not_augmented(tmp_path, workers):
    module = toys.module(chains=None)
    batches = toys.batches(None, augment=Noise(), transform=lambda x: x / 2)
    toys.trainer(tmp_path, 3).fit(module, batches if workers is None else WorkerBatches(batches, workers))
    x, y = toys.tensors()
    torch.testing.assert_close(module.full_loss().float(), F.cross_entropy(module(x / 2), y))


def test_full_loss_of_a_shuffling_loader_counts_the_short_batch(tmp_path):
    module = toys.module(chains=None)
    loader = DataLoader(TensorDataset(*toys.tensors()), batch_size=12, shuffle=True)
    toys.trainer(tmp_path, 3).fit(module, loader)
    x, y = toys.tensors()
    torch.testing.assert_close(module.full_loss().float(), F.cross_entropy(module(x), y))


def test_full_loss_leaves_a_module_in_eval_mode_as_it_is(tmp_path):
    """A user may freeze BatchNorm by .eval(). It must stay in eval mode after a full-data energy."""
    module = toys.module(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)), chains=None)
    toys.trainer(tmp_path, 3).fit(module, toys.batches(None))
    module.train()
    module.net[1].eval()
    module.full_loss()
    assert not module.net[1].training and module.net[0].training


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (nn.MSELoss(), "GaussianNLL"),
        (nn.CrossEntropyLoss(label_smoothing=0.1), "smoothed labels"),
        (nn.CrossEntropyLoss(weight=torch.ones(K)), "class weights"),
    ],
    ids=["mse", "smoothing", "weights"],
)
def test_a_loss_that_is_no_likelihood_is_named(tmp_path, loss, words):
    y = torch.zeros(N, K) if isinstance(loss, nn.MSELoss) else toys.tensors()[1]
    module = toys.module(chains=None, loss=loss)
    with pytest.warns(BdlWarning, match=words):
        toys.trainer(tmp_path, 2).fit(module, toys.TensorBatches(toys.tensors()[0], y, BATCH))
    assert words in module.sampler.explain()


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss(), bdl.GaussianNLL(0.5), bdl.HeteroscedasticNLL()])
def test_a_likelihood_gives_no_warning(tmp_path, loss):
    gaussian = isinstance(loss, bdl.GaussianNLL | bdl.HeteroscedasticNLL)
    net = MLP((3, 5, 2 * K if isinstance(loss, bdl.HeteroscedasticNLL) else K))
    y = torch.zeros(N, K) if gaussian else toys.tensors()[1]
    module = toys.module(net, None, loss)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BdlWarning)
        toys.trainer(tmp_path, 2).fit(module, toys.TensorBatches(toys.tensors()[0], y, BATCH))
    assert "loss:" not in module.sampler.explain()


def test_16_mixed_is_refused(tmp_path, monkeypatch):
    trainer = toys.trainer(tmp_path, 2)
    monkeypatch.setattr(type(trainer), "precision", "16-mixed")
    with pytest.raises(ConfigError, match="precision=16-mixed .* use bf16-mixed or 32-true"):
        trainer.fit(toys.module(), toys.batches())


class Logits(bdl.BayesianModule):
    """Remembers the dtype of the outputs that the loss received."""

    def batch_loss(self, outputs, y):
        self.seen = outputs.dtype
        return super().batch_loss(outputs, y)


@pytest.mark.parametrize("chains", [None, 2])
def test_bf16_mixed_keeps_parameters_state_and_gradients_in_fp32(tmp_path, chains):
    module = toys.module(chains=chains, weighting=weighted())
    module.__class__ = Logits
    toys.trainer(tmp_path, 3, precision="bf16-mixed").fit(module, toys.batches(chains))
    sampler = module.sampler
    assert sampler.steps == 3 and module.seen == torch.bfloat16
    state = [p for p in module.parameters()] + [p.grad for p in module.parameters()]
    state += [v for s in sampler.state_dict()["state"].values() for v in s.values() if isinstance(v, torch.Tensor)]
    assert len(state) >= 12 and {t.dtype for t in state} == {torch.float32}
    assert sampler.energy.dtype == sampler.full_energy().dtype == torch.float64


def test_an_energy_under_bf16_is_resolved_finer_than_bf16(tmp_path):
    """bf16 has 8 bits: near 44 nats it resolves multiples of 1/4 only."""
    module = toys.module(chains=None)
    seen = []
    toys.trainer(tmp_path, 8, [Seen(seen)], precision="bf16-mixed").fit(module, toys.batches(None))
    assert any(float(u.to(torch.bfloat16)) != float(u) for u in seen)
    assert len({float(u) for u in seen}) == 8


class Seen(L.Callback):
    def __init__(self, seen: list[torch.Tensor]):
        self.seen = seen

    def on_train_batch_end(self, trainer, pl_module, *_):
        self.seen.append(pl_module.sampler.energy.clone())


def test_bf16_is_refused_on_a_gpu_without_it(tmp_path, monkeypatch):
    module, trainer = toys.module(), toys.trainer(tmp_path, 2, precision="bf16-mixed")
    monkeypatch.setattr(type(trainer.strategy), "root_device", torch.device("cuda:0"))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Old GPU")
    with pytest.raises(ConfigError, match="Old GPU has no bfloat16: set trainer.precision=32-true"):
        check_trainer(trainer, module.build_sampler(module.net.named_parameters(), chains=module.chains))


def test_accumulation_counts_sampler_steps(tmp_path):
    made = toys.module()
    collect = bdl.CollectSamples(bdl.schedules.EveryStep(0, 2), tmp_path)
    toys.trainer(tmp_path, 6, [collect], accumulate_grad_batches=2).fit(made, toys.batches())
    assert made.sampler.steps == 6
    assert [r.step for r in collect.store.records()] == [2, 4, 6]


def test_accumulation_steps_along_the_mean_gradient(tmp_path):
    """At T = 0, two micro-batches of 10 are one batch of 20."""
    x, y = toys.tensors()
    net = MLP((3, 5, 3))
    once, twice = (toys.module(MLP((3, 5, 3)), None, temperature=0.0) for _ in range(2))
    for module in (once, twice):
        module.net.load_state_dict(net.state_dict())
    toys.trainer(tmp_path, 2).fit(once, DataLoader(TensorDataset(x, y), batch_size=20))
    toys.trainer(tmp_path, 2, accumulate_grad_batches=2).fit(twice, DataLoader(TensorDataset(x, y), batch_size=10))
    torch.testing.assert_close(once.net.state_dict(), twice.net.state_dict())


def test_accumulated_energies_are_averaged_over_micro_batches(tmp_path):
    x, y = toys.tensors()
    module = toys.module(chains=None)
    net = MLP((3, 5, 3))
    net.load_state_dict(module.net.state_dict())
    toys.trainer(tmp_path, 1, accumulate_grad_batches=2).fit(module, DataLoader(TensorDataset(x, y), batch_size=10))
    prior = sum(p.square().sum() for p in net.parameters()) / 2
    expected = N * F.cross_entropy(net(x[:20]), y[:20]) + prior
    torch.testing.assert_close(module.sampler.energy.float(), expected)


def test_lightnings_gradient_clipping_is_named_once(tmp_path):
    module = toys.module(chains=None)
    collect = bdl.CollectSamples(bdl.schedules.EveryStep(0, 1), tmp_path)
    toys.trainer(tmp_path, 2, [collect], gradient_clip_val=0.5).fit(module, toys.batches(None))
    assert module.sampler.explain().count("Lightning clips the loss gradient at 0.5 (norm)") == 1


def test_lightnings_gradient_clipping_acts(tmp_path):
    module = toys.module(chains=None, temperature=0.0, prior=bdl.Uniform(), dynamics=bdl.SGLD())
    before = torch.cat([p.detach().flatten().clone() for p in module.parameters()])
    toys.trainer(tmp_path, 1, gradient_clip_val=0.01).fit(module, toys.batches(None))
    after = torch.cat([p.detach().flatten() for p in module.parameters()])
    assert (after - before).norm().item() == pytest.approx(0.1 * 0.01, rel=1e-3)


def test_any_module_that_returns_a_sampler_works_in_six_lines(tmp_path):
    module, loader, keep = UserModule(), dataloader(shuffle=True), bdl.schedules.EveryStep(4, 2)
    schedule = bdl.Schedule(lr=bdl.schedules.Polynomial(0.1))
    collect = bdl.CollectSamples(keep, tmp_path, net="model")
    average = bdl.ModelAverage(keep, dataloader(), likelihood=bdl.CategoricalNLL())
    L.Trainer(max_steps=10, callbacks=[schedule, collect, average, bdl.Monitor(2)], **SILENT).fit(module, loader)
    posterior = bdl.Posterior.load(tmp_path, nn.Linear(toys.D, K), likelihood=bdl.CategoricalNLL())

    x, _ = toys.tensors()
    assert posterior.samples == 3 and average.count == 3
    torch.testing.assert_close(posterior.predict(x).probs, average.average.total / 3)


def test_without_the_name_of_a_net_the_module_itself_is_sample(tmp_path):
    module = UserModule()
    toys.trainer(tmp_path, 2, [bdl.CollectSamples(bdl.schedules.EveryStep(0, 1), tmp_path)]).fit(module, dataloader())
    assert set(bdl.SampleStore(tmp_path).read(bdl.SampleStore(tmp_path).records()[0])) == {
        "model.weight",
        "model.bias",
    }


def test_a_sample_carries_lr_that_made_it_under_torch_scheduler(tmp_path):
    """Lightning steps the scheduler before on_train_batch_end, but a step-size weight needs the lr of the step."""
    collect = bdl.CollectSamples(bdl.schedules.EveryStep(0, 1), tmp_path)
    toys.trainer(tmp_path, 4, [collect]).fit(UserModule(scheduler=True), dataloader())
    assert [r.lr for r in collect.store.records()] == pytest.approx([0.1, 0.05, 0.025, 0.0125])


def test_a_module_with_another_optimizer_is_refused(tmp_path):
    class Plain(UserModule):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    with pytest.raises(ConfigError, match=r"must return a bdl.Sampler, got \['SGD'\]"):
        toys.trainer(tmp_path, 2, [bdl.Schedule()]).fit(Plain(), dataloader())


def test_lightnings_lr_monitor_reads_the_sampler(tmp_path):
    logger, schedule = toys.Memory(), bdl.Schedule(lr=bdl.schedules.Constant(0.03))
    callbacks = [schedule, LearningRateMonitor("step")]
    toys.trainer(tmp_path, 2, callbacks, logger=logger, log_every_n_steps=1).fit(toys.module(), toys.batches())
    assert [row["lr-Sampler"] for _, row in logger.rows if "lr-Sampler" in row] == [0.03, 0.03]
