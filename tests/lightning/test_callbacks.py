"""Tests of `bdl.lightning.callbacks.collect`, `.sample_writer`, `.average`, `.monitor`, `.schedule` and `.progress`.

CollectSamples, ModelAverage, Monitor and Schedule against direct computations.
"""

import json
import math
import re

import pytest
import torch
import torch.nn.functional as F
import toys
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset
from toys import N

import bdl
from bdl.data import TensorSlices
from bdl.lightning.callbacks import monitor as monitor_module
from bdl.likelihoods import outputs_of
from bdl.models import MLP
from bdl.schedules import Constant, Cycle, CyclicalCosine, EveryStep, PerCycle, Ramp, WhileSampling


def records(folder):
    return bdl.SampleStore(folder).records()


def energy_of(tensors: dict[str, torch.Tensor], net: nn.Module, x, y) -> float:
    """U of one network by its definition, estimated on the batch (x, y)."""
    net.eval()
    prior = sum(tensors[k].double().square().sum() for k, _ in net.named_parameters()) / 2
    return float(N * F.cross_entropy(functional_call(net, tensors, (x,)), y).double() + prior)


class Watch(Callback):
    """Remembers lr, temperature and zeta of every step."""

    def __init__(self):
        self.groups: list[dict] = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.groups.append({k: optimizer.param_groups[0][k] for k in ("lr", "temperature", "zeta")})


def test_the_steps_of_the_keep_rule_are_kept(device, tmp_path):
    toys.sample(tmp_path, 11, EveryStep(4, 3))
    assert [r.step for r in records(tmp_path)] == [7, 10]


def test_an_index_line_has_the_documented_fields(tmp_path):
    cycle = Cycle(12, 2, 0.5)
    schedule = bdl.Schedule(CyclicalCosine(0.2, cycle), WhileSampling(0.5, cycle))
    toys.sample(tmp_path, 12, PerCycle(cycle, 2), callbacks=[schedule], stack=3)
    lines = [json.loads(line) for line in (tmp_path / "samples/index-3.jsonl").read_text().splitlines()]
    assert set(lines[0]) == {
        "format_version", "step", "stack", "chains", "cycle", "lr", "temperature", "zeta", "energy_batch",
        "energy_full", "log_weight", "psi_frozen", "file", "bytes", "sha256",
    }  # fmt: skip
    assert [line["step"] for line in lines] == [5, 6, 11, 12]
    assert [line["cycle"] for line in lines] == [0, 0, 1, 1]
    assert [line["lr"] for line in lines] == pytest.approx([CyclicalCosine(0.2, cycle)(k) for k in (4, 5, 10, 11)])
    assert all(line["chains"] == [6, 7] and line["stack"] == 3 and line["temperature"] == 0.5 for line in lines)
    assert all((tmp_path / "samples" / line["file"]).stat().st_size == line["bytes"] for line in lines)
    assert lines[0]["file"] == "00000005-3.safetensors"


@pytest.mark.parametrize("chains", [None, 2])
def test_the_file_holds_the_state_after_the_step(device, tmp_path, chains):
    module = toys.sample(tmp_path, 4, EveryStep(0, 4), chains=chains)
    tensors = bdl.SampleStore(tmp_path).read(records(tmp_path)[0])
    net = module.net.net if chains else module.net
    for name, p in net.named_parameters():
        assert torch.equal(tensors[name], p.detach() if chains else p.detach()[None])


def test_energies_belong_to_the_state_kept(device, tmp_path):
    """energy_full is U over all the data at the saved parameters, energy_batch its estimate on the next batch."""
    toys.sample(tmp_path, 9, EveryStep(0, 2))
    store, net = bdl.SampleStore(tmp_path), toys.plain()
    stream = toys.batches(2)
    drawn = [batch for _ in range(3) for batch in stream]  # the batches of the run, in order
    x, y = toys.tensors()
    for record in store.records():
        tensors = store.read(record)
        for c in range(2):
            one = {k: v[c] for k, v in tensors.items()}
            assert record.energy_full[c] == pytest.approx(energy_of(one, net, x, y), rel=1e-5)
            xb, yb = drawn[record.step]  # batches count from 0, so this one follows the kept state
            assert record.energy_batch[c] == pytest.approx(energy_of(one, net, xb[c], yb[c]), rel=1e-5)


def test_the_last_state_of_a_run_has_no_batch_energy(tmp_path):
    toys.sample(tmp_path, 8, EveryStep(0, 4))
    first, last = records(tmp_path)
    assert first.energy_batch is not None and first.log_weight == [0.0, 0.0]
    assert last.energy_batch is None and last.log_weight is None and last.energy_full is not None


def test_full_energies_may_be_left_out(tmp_path):
    toys.sample(tmp_path, 4, collect={"full_energy": False})
    assert all(r.energy_full is None for r in records(tmp_path))


def test_log_weight_is_zeta_log_psi_of_the_batch_energy(tmp_path):
    weighting = bdl.AdaptiveWeight(zeta=1.5, low=0.0, high=120.0, bins=10)
    module = toys.sample(tmp_path, 400, EveryStep(200, 20), weighting=weighting, collect={"freeze_weighting": False})
    assert any(w != 0 for r in records(tmp_path)[:-1] for w in r.log_weight)
    assert all(r.zeta == 1.5 and not r.psi_frozen for r in records(tmp_path))
    saved, about = bdl.SampleStore(tmp_path).weighting(0)
    torch.testing.assert_close(saved["log_psi"], module.sampler.reweighting.histogram.log_psi)
    assert saved["edges"].shape == (2, 11) and saved["zeta"].tolist() == [1.5, 1.5]
    assert saved["temperature"].tolist() == [1.0, 1.0]
    assert about == {"energy": "batch", "weighting": "AdaptiveWeight"}


def test_psi_is_frozen_at_first_sample_at_which_it_has_settled(tmp_path):
    """A step of 0.125 forgets at most an eighth of the start of psi: 0.05 of it is left after 24 steps or more."""
    fast = bdl.AdaptiveWeight(low=0.0, high=120.0, bins=10, rate=Constant(0.125))
    toys.sample(tmp_path, 240, EveryStep(0, 10), weighting=fast)
    frozen = [r.psi_frozen for r in records(tmp_path)]
    assert not any(f for f, r in zip(frozen, records(tmp_path), strict=True) if r.step < 24)
    assert frozen == sorted(frozen) and frozen[-1]  # once frozen, it stays so


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


def test_running_statistics_are_saved_as_they_stand(device, tmp_path):
    module = toys.sample(tmp_path, 6, EveryStep(0, 6), normed())
    tensors = bdl.SampleStore(tmp_path).read(records(tmp_path)[0])
    for name, buffer in module.net.net.named_buffers():
        assert torch.equal(tensors[name], buffer)


def test_refreshing_leaves_the_chain_and_its_buffers_alone(device, tmp_path):
    runs = {}
    for policy in ("running", "refresh"):
        module = toys.sample(tmp_path / policy, 9, EveryStep(0, 3), normed(), collect={"batchnorm": policy})
        runs[policy] = module.net.state_dict()
    assert all(torch.equal(runs["running"][k], v) for k, v in runs["refresh"].items())


@pytest.mark.parametrize("chains", [None, 2])
@pytest.mark.parametrize("step", [4, 6, 7])
def test_refreshed_statistics_are_those_of_a_whole_epoch(tmp_path, chains, step):
    """The state may be kept anywhere in an epoch: the means are over all 40 items, in 4 batches."""
    toys.sample(tmp_path, step, EveryStep(0, step), normed(), chains, collect={"batchnorm": "refresh"})
    tensors = bdl.SampleStore(tmp_path).read(records(tmp_path)[0])
    x, _ = toys.tensors()
    for c in range(chains or 1):
        features = F.linear(x, tensors["0.weight"][c], tensors["0.bias"][c])
        torch.testing.assert_close(tensors["1.running_mean"][c], features.mean(0))


def test_refreshing_works_under_vmap(tmp_path):
    net = bdl.ChainStack(normed(), 2, method="vmap")
    toys.sample(tmp_path, 4, EveryStep(0, 4), net, collect={"batchnorm": "refresh"})
    tensors = bdl.SampleStore(tmp_path).read(records(tmp_path)[0])
    features = F.linear(toys.tensors()[0], tensors["0.weight"][1], tensors["0.bias"][1])
    torch.testing.assert_close(tensors["1.running_mean"][1], features.mean(0))


def test_the_target_identifies_the_law(tmp_path):
    toys.sample(tmp_path, 4, prior=bdl.Gaussian(2.0), collect={"target": {"data": "toys"}})
    target = json.loads((tmp_path / "samples/target.json").read_text())
    assert target["num_data"] == N and target["data"] == "toys"
    assert target["prior"] == {"type": "bdl.Gaussian", "precision": 2.0} and target["shapes"]["0.weight"] == [5, 3]
    assert target["loss"] == {"type": "bdl.CategoricalNLL"} and target["outputs"] == "logits"
    assert target["clip"] is None and target["weighting"] == {"type": "bdl.Flat", "zeta": 0.0}
    assert target["injects_noise"] is True and target["caveat"] is None


def target_of(folder, **sampler) -> dict:
    toys.sample(folder, 4, **sampler)
    return json.loads((folder / "samples/target.json").read_text())


def test_bins_and_rate_of_a_weighting_do_not_make_another_law(tmp_path):
    one = target_of(tmp_path / "a", weighting=bdl.AdaptiveWeight(zeta=2.0, low=0.0, high=120.0, bins=10))
    more = target_of(tmp_path / "b", weighting=bdl.AdaptiveWeight(zeta=2.0, low=0.0, high=99.0, rate=Constant(0.1)))
    stronger = target_of(tmp_path / "c", weighting=bdl.AdaptiveWeight(zeta=3.0, low=0.0, high=120.0, bins=10))
    contour = target_of(tmp_path / "d", weighting=bdl.Contour(zeta=2.0, low=0.0, high=120.0, bins=10))
    assert one == more
    assert len({json.dumps(t["weighting"]) for t in (one, stronger, contour)}) == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"prior": bdl.Gaussian([1.0, 2.0, 1.0, 2.0])}, None),
        ({"prior": bdl.Gaussian([1.0, 2.0, 1.0, 3.0])}, r"prior.precision.values is \[1.0, 2.0, 1.0, 2.0\] in"),
        ({"prior": bdl.Laplace([1.0, 2.0, 1.0, 2.0])}, 'prior.type is "bdl.Gaussian" in'),
        ({"prior": bdl.Gaussian([1.0, 2.0, 1.0, 2.0]), "clip": bdl.ClipNorm(1.0)}, "clip is absent in"),
    ],
    ids=["equal", "another scale", "another prior", "clipped"],
)
def test_runs_are_merged_if_and_only_if_their_laws_are_equal(tmp_path, settings, words):
    """Priors have one scale per tensor. Seeds differ."""
    toys.sample(tmp_path / "a", 4, prior=bdl.Gaussian([1.0, 2.0, 1.0, 2.0]))
    toys.sample(tmp_path / "b", 4, seed=1, **settings)
    runs = [tmp_path / "a", tmp_path / "b"]
    if words is None:
        assert bdl.Posterior.load(runs, toys.plain()).chains == 4
    else:
        with pytest.raises(bdl.StoreError, match=words):
            bdl.Posterior.load(runs, toys.plain())


@pytest.mark.parametrize(
    ("loss", "outputs"),
    [
        (bdl.CategoricalNLL(), "logits"),
        (nn.CrossEntropyLoss(), "logits"),
        (bdl.GaussianNLL(0.5), "values"),
        (bdl.HeteroscedasticNLL(), "values"),
        (nn.MSELoss(), "values"),
        (nn.L1Loss(), "values"),
        (nn.GaussianNLLLoss(), "values"),
        (F.cross_entropy, "logits"),
        (nn.BCEWithLogitsLoss(), "labels"),
        (lambda outputs, y: outputs.mean(), "unknown"),
        (None, "unknown"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_loss_says_what_the_outputs_are(loss, outputs):
    assert outputs_of(loss) == outputs


def slices():
    return DataLoader(TensorDataset(*toys.tensors(seed=2)), batch_size=16)


@pytest.mark.parametrize("chains", [None, 2])
def test_the_average_during_training_is_that_of_the_posterior(device, tmp_path, chains):
    keep = EveryStep(2, 3)
    average = bdl.ModelAverage(keep, slices())
    toys.sample(tmp_path, 12, keep, MLP((3, 5, 3), dropout=0.3), chains, callbacks=[average])
    posterior = bdl.Posterior.load(tmp_path, MLP((3, 5, 3), dropout=0.3))
    evaluation = posterior.evaluate(slices())
    assert average.count == posterior.samples == 3 * (chains or 1)
    torch.testing.assert_close(average.average.total / average.count, evaluation.bma)
    assert average.metrics == pytest.approx(evaluation.scores(evaluation.bma))


def test_the_average_is_logged_under_its_name(tmp_path):
    logger = toys.Memory()
    average = bdl.ModelAverage(EveryStep(0, 2), slices(), name="held_out")
    toys.trainer(tmp_path, 4, [average], logger=logger).fit(toys.module(), toys.batches())
    assert logger.steps("held_out/bma/accuracy") == [2, 4]
    assert logger.rows[-1][1]["held_out/bma/nll"] == average.metrics["nll"]


def test_averaging_leaves_the_chain_and_training_mode_alone(tmp_path):
    modules = [toys.module(MLP((3, 5, 3), dropout=0.3)) for _ in range(2)]
    average = bdl.ModelAverage(EveryStep(0, 1), TensorSlices(*toys.tensors()))
    for module, callbacks in zip(modules, ([], [average]), strict=True):
        torch.manual_seed(0)
        toys.trainer(tmp_path, 6, callbacks).fit(module, toys.batches())
        assert module.net.training
    assert average.count == 12
    assert all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in modules), strict=True))


def monitored(tmp_path, steps, every=1, **arguments):
    monitor = bdl.Monitor(every)
    module = toys.module(**arguments)
    toys.trainer(tmp_path, steps, [monitor]).fit(module, toys.batches())
    return monitor, module


def test_the_trace_holds_the_properties_of_the_sampler(device, tmp_path):
    monitor, module = monitored(tmp_path, 45, every=5)
    trace, sampler = monitor.trace(), module.sampler
    assert trace["step"].tolist() == list(range(5, 46, 5))
    assert trace["energy"].shape == (9, 2)
    torch.testing.assert_close(trace["energy"][-1], sampler.energy.cpu())
    torch.testing.assert_close(trace["t_eff"][-1], sampler.t_eff.cpu().double())
    torch.testing.assert_close(trace["kinetic_temperature"][-1], sampler.kinetic_temperature.cpu().double())
    assert trace["configurational_temperature"].isfinite().all(1).tolist() == [False, True] * 4 + [False]
    assert trace["lr"].tolist() == [0.1] * 9 and trace["multiplier"].unique().tolist() == [1.0]


def test_means_over_chains_are_logged_at_the_monitored_steps(tmp_path):
    logger, monitor = toys.Memory(), bdl.Monitor(3)
    module = toys.module()
    toys.trainer(tmp_path, 6, [monitor], logger=logger).fit(module, toys.batches())
    assert logger.steps("chain/energy") == [3, 6]
    assert logger.rows[-1][1]["chain/energy"] == pytest.approx(module.sampler.energy.mean().item())
    names = "lr temperature zeta energy multiplier noise_ratio t_eff kinetic_temperature"
    assert {f"chain/{name}" for name in names.split()} <= set(logger.rows[-1][1])


def test_a_trace_goes_on(device, tmp_path):
    monitor, _ = monitored(tmp_path, 4)
    saved, fresh = monitor.state_dict(), bdl.Monitor(1)
    fresh.load_state_dict(saved)
    assert fresh.trace()["step"].tolist() == [1, 2, 3, 4]


def test_without_a_step_there_is_no_trace():
    assert bdl.Monitor().trace() == {}


@pytest.mark.parametrize("steps", [9, 10, 11, 40, 57])
def test_the_trace_is_bounded_and_evenly_spaced(tmp_path, monkeypatch, steps):
    monkeypatch.setattr(monitor_module, "ROWS", 10)
    monitor, _ = monitored(tmp_path, steps)
    kept = monitor.trace()["step"].tolist()
    assert len(kept) < 10 and len(kept) >= min(steps, 4)
    assert len(set(torch.tensor(kept).diff().tolist())) == 1
    assert steps - kept[-1] < kept[1] - kept[0]


def test_unknown_numbers_are_nan(tmp_path):
    monitor, _ = monitored(tmp_path, 1, temperature=0.0, dynamics=bdl.SGLD())
    assert all(math.isnan(v) for v in monitor.trace()["kinetic_temperature"][0])
    assert all(math.isnan(v) for v in monitor.trace()["noise_ratio"][0])


def test_a_log_file_gets_twenty_lines(device, tmp_path, capsys):
    """It gets a line for every 5 % of the steps, with the step and the mean energy per item, and no line twice."""
    progress = [bdl.callbacks.StepProgress()]
    toys.trainer(tmp_path, 60, progress, enable_progress_bar=True, max_epochs=-1).fit(toys.module(), toys.batches())
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[1]) for line in lines] == list(range(3, 61, 3))
    assert all(re.fullmatch(r"step \d+ of 60, \d+ s, \d+ s left  energy per item \d+\.\d{3}", line) for line in lines)


def test_lr_temperature_and_zeta_are_those_of_the_step(device, tmp_path):
    watch, cycle = Watch(), Cycle(10, 2, 0.4)
    schedule = bdl.Schedule(CyclicalCosine(0.2, cycle), WhileSampling(0.5, cycle), Ramp(2.0, 5))
    weighting = bdl.AdaptiveWeight(low=0.0, high=200.0, bins=4)
    toys.trainer(tmp_path, 10, [schedule, watch]).fit(toys.module(weighting=weighting), toys.batches())
    expected = [{name: f(k) for name, f in schedule.functions.items()} for k in range(10)]
    assert watch.groups == expected


def test_schedules_count_sampler_steps_under_accumulation(tmp_path):
    watch = Watch()
    schedule = bdl.Schedule(lr=lambda k: 0.1 / (k + 1))
    toys.trainer(tmp_path, 3, [schedule, watch], accumulate_grad_batches=2).fit(toys.module(), toys.batches())
    assert [g["lr"] for g in watch.groups] == pytest.approx([0.1, 0.05, 0.1 / 3])


class Scaled(bdl.BayesianModule):
    """A module with a parameter outside of its network."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.scale = torch.nn.Parameter(torch.ones(1))

    def configure_optimizers(self):
        self.sampler = self.build_sampler(self.named_parameters(), chains=None)
        return self.sampler


@pytest.mark.parametrize("net", [None, ""])
def test_a_parameter_outside_the_saved_network_is_refused(tmp_path, net):
    made = toys.module(chains=None)
    module = Scaled(made.net, made.build_sampler)
    collect = bdl.CollectSamples(EveryStep(0, 2), tmp_path, net=net)
    fit = toys.trainer(tmp_path, 4, [collect]).fit
    if net is None:
        with pytest.raises(bdl.ConfigError, match="scale is sampled but not part"):
            fit(module, toys.batches(None))
    else:
        with pytest.warns(bdl.errors.BdlWarning, match="scale the first, have no gradient"):
            fit(module, toys.batches(None))
        assert "scale" in collect.store.read(collect.store.records()[0])
