"""What calls in Python refuse, in one line each: tables of the call and the words of its message."""

import math
import re

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import bdl
from bdl.data import Augment, LandsatDataModule, Shift, TensorBatches
from bdl.data.table_encoding import TableEncoding
from bdl.errors import ConfigError
from bdl.models import GPT, MLP, ResNet, ResNet18, WideResNet
from bdl.samplers.weighting.histogram import Form
from bdl.schedules import Cycle, EveryStep, PerCycle, Polynomial

D64 = torch.float64


def parameter(*shape: int, dtype: torch.dtype = D64) -> nn.Parameter:
    return nn.Parameter(torch.ones(shape, dtype=dtype))


def sampler(*params, dynamics=None, **settings) -> bdl.Sampler:
    """A Sampler whose arguments are right but for those that are given."""
    settings = {"num_data": 40, "lr": 0.1} | settings
    return bdl.Sampler(list(params) or [parameter(4, 2)], dynamics or bdl.SGLD(), **settings)


def gaussian_prior(mean: list[float], variance: list[float]) -> bdl.GaussianPrior:
    return bdl.GaussianPrior(("a",), ((2,),), torch.tensor(mean), torch.tensor(variance), torch.zeros(0, 2))


NAN, INF = math.nan, math.inf
SCALES = [-1.0, NAN, INF, None, "wide", [], [1.0, -1.0], [1.0, NAN], ["a"]]
CLASSES = torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64)

# A call with an argument, values that it refuses, and words of the message, which names the value too.
VALUES = [
    # samplers
    (lambda v: sampler(num_data=v), [0, -5, 40.5, NAN, "40", True], "num_data must be a whole number of at least 1"),
    (lambda v: sampler(lr=v), [0.0, -0.1, NAN, INF], "lr must be > 0 and finite"),
    (lambda v: sampler(lr=v), ["0.1"], "lr must be a number or a tensor with one per chain"),
    (lambda v: sampler(temperature=v), [-1.0, NAN, INF], "temperature must be >= 0 and finite"),
    (lambda v: sampler(chains=v), [0, 2.0], "chains must be a whole number of at least 1"),
    (lambda v: sampler(dynamics=v), [bdl.SGHMC, "sghmc"], "of bdl.Dynamics or bdl.FullBatch, such as bdl.SGHMC()"),
    (bdl.ClipNorm, [0.0, -1.0, NAN], "c of ClipNorm must be > 0"),
    (bdl.ClipValue, [0.0, -1.0, NAN], "c of ClipValue must be > 0"),
    (lambda v: bdl.Block(lr_factor=v), [0, -1.0, INF, NAN, True, "a"], "lr_factor of a block must be a number > 0"),
    (lambda v: bdl.ControlVariate(every=v), [0], "every must be at least 1 step"),
    (lambda v: bdl.Exchange(every=v), [0], "every must be at least 1 step"),
    (lambda v: bdl.Exchange(energy_var=v), [-1.0, NAN, "foo"], 'energy_var must be "estimated" or a variance >= 0'),
    # dynamics
    (lambda v: bdl.SGHMC(friction=v), [0.0, 1.1, NAN], "friction must be in (0, 1]"),
    (lambda v: bdl.SGHMC(grad_var=v), [-1.0, "known", [0.1, NAN]], 'null, "estimated", or a variance >= 0'),
    (lambda v: bdl.SGD(momentum=v), [1.0, -0.1], "momentum must be in [0, 1)"),
    (lambda v: bdl.BAOAB(friction=v), [0.0], "friction must be in (0, 1]"),
    (lambda v: bdl.SGNHT(friction=v), [1.5], "friction must be in (0, 1]"),
    (lambda v: bdl.SGNHT(rate=v), [0.0, NAN], "rate of the thermostat must be > 0"),
    (lambda v: bdl.PSGLD(a=v), [1.0, -0.1, NAN], "a must be in [0, 1)"),
    (lambda v: bdl.PSGLD(damping=v), [0.0], "damping must be > 0"),
    (lambda v: bdl.PSGLD(adapt_steps=v), [0], "adapt_steps must be at least 1, or null"),
    (lambda v: bdl.SGRLD(damping=v), [-1.0], "damping must be > 0"),
    (lambda v: bdl.SGFS(form=v), ["dense"], 'form must be "diagonal" or "full"'),
    (lambda v: bdl.SGFS(b=v), [0.0], "b must be > 0"),
    (lambda v: bdl.SMILE(friction=v), [1.0, 0.0], "friction must be in (0, 1)"),
    (lambda v: bdl.SMILE(mass=v), ["diagonal"], 'mass must be "noise" or "unit"'),
    (lambda v: bdl.SMILE(heat=v), [0.0], "heat must be > 0"),
    (lambda v: bdl.SMILE(noise_share=v), [1.5], "noise_share must be in (0, 1]"),
    (lambda v: bdl.HMC(mass=v), ["dense"], 'mass must be "unit" or "diagonal"'),
    (lambda v: bdl.HMC(target=v), [NAN], "target acceptance must be in (0, 1)"),
    (lambda v: bdl.HMC(leapfrog=v), [0], "leapfrog must be at least 1 step"),
    (lambda v: bdl.MALA(target=v), [1.0], "target acceptance must be in (0, 1)"),
    (lambda v: bdl.MALA(adapt_steps=v), [-1], "adapt_steps must be >= 0"),
    (lambda v: bdl.Metropolis(target=v), [0.0], "target acceptance must be in (0, 1)"),
    (lambda v: bdl.MCLMC(v), ["verlet"], "integrator must be one of leapfrog, mclachlan"),
    (lambda v: bdl.MCLMC(energy_var=v), [0.0], "energy_var must be > 0"),
    (lambda v: bdl.MCLMC(energy_var_start=v), [-1.0], "energy_var_start must be > 0"),
    (lambda v: bdl.MCLMC(length=v), [NAN], "length must be > 0"),
    (lambda v: bdl.MCLMC(adapt_steps=v), [-1], "adapt_steps must be >= 0"),
    (lambda v: bdl.MeanField(init_std=v), [0.0, NAN], "init_std must be > 0"),
    (lambda v: bdl.MeanField(kl_weights=v), ["half"], 'kl_weights must be "uniform" or "geometric"'),
    (lambda v: bdl.MeanField(kl_weights="geometric", batches=v), [None, 0], "number of batches of an epoch"),
    # priors
    (lambda v: bdl.Gaussian(v), SCALES, "precision"),
    (lambda v: bdl.Laplace(v), [*SCALES, 0.0], "Laplace scale"),
    (lambda v: bdl.StudentT(scale=v), [*SCALES, 0.0], "Student-t scale"),
    (lambda v: bdl.StudentT(v), [0.0, INF, NAN], "Student-t df must be > 0"),
    (lambda v: bdl.ScaleMixture(v), [0.0, 1.0, NAN], "needs 0 < share < 1 and 0 < narrow < wide, got"),
    (lambda v: bdl.ScaleMixture(0.5, v, 1.0), [1.0, INF], "needs 0 < share < 1 and 0 < narrow < wide, got"),
    (lambda v: bdl.ScaleMixture(0.5, 1.0, v), [0.0], "needs 0 < share < 1 and 0 < narrow < wide, got"),
    (lambda v: bdl.Learned(shape=v), [0], "shape of a learned precision must be a number > 0"),
    (lambda v: bdl.Learned(rate=v), [NAN], "rate of a learned precision must be a number > 0"),
    (lambda v: bdl.Learned(each=v), ["layer"], "each of a learned precision must be tensor or block"),
    (lambda v: bdl.Learned(every=v), [0], "every of a learned precision must be"),
    # weightings
    (lambda v: bdl.AdaptiveWeight(zeta=v), [-1.0, 1e10, NAN], "zeta must be between 0 and 1e+09"),
    (lambda v: bdl.AdaptiveWeight(bins=v), [1], "bins must be at least 2"),
    (lambda v: bdl.AdaptiveWeight(low=v), ["0.1 %%", "101%", True], 'an energy in nats, a quantile such as "0.1%"'),
    (lambda v: bdl.AdaptiveWeight(low=v, high=1.0), [2.0], "low must be below high"),
    (lambda v: bdl.AdaptiveWeight(low=v, high=1.0), [NAN], "low must be an energy in nats"),
    (lambda v: bdl.AdaptiveWeight(high=v), ["3M", INF], "high must be an energy in nats, a quantile such as"),
    (lambda v: bdl.AdaptiveWeight(low="5", high=5), ["5"], "low must be below high"),
    (lambda v: bdl.AdaptiveWeight(energy=v), ["sum"], 'energy must be "batch", "ema", "full" or "control"'),
    (lambda v: bdl.AdaptiveWeight(form=v), ["steep"], 'form must be "slides", "code" or "full"'),
    (lambda v: bdl.AdaptiveWeight(units=v), ["kT"], 'units must be "nats" or "temperature"'),
    (lambda v: bdl.AdaptiveWeight(refresh=v), [0], "refresh must be at least 1 step"),
    (lambda v: bdl.AdaptiveWeight(edges=v), [5, [1.0, 3.0, 2.0], [1.0, 2.0], ["a", 2.0, 3.0]],
     "edges must be at least three energies in ascending order"),
    (lambda v: Form(rise=v), ["steep"], 'rise must be "bounded", "clipped" or "log"'),
    (lambda v: Form(start=v), ["i/m"], 'start must be "flat" or "linear"'),
    (lambda v: Form(min_visits=v), [-1], "min_visits must be >= 0"),
    # likelihoods
    (bdl.GaussianNLL, [0], "std must be > 0"),
    (lambda v: bdl.StudentTNLL(df=v), [2.0], "df must be > 2"),
    (lambda v: bdl.StudentTNLL(scale=v), [0.0], "scale must be > 0"),
    (bdl.NegativeBinomialNLL, [-1.0], "dispersion must be > 0"),
    # data
    (lambda v: Augment(erase=v), [1.5, -0.1], "erase must be a probability"),
    (lambda v: Augment(crop=v), [-1], "crop and cutout must be >= 0 pixels"),
    (lambda v: Augment(cutout=v), [-2], "crop and cutout must be >= 0 pixels"),
    (lambda v: LandsatDataModule(val_fraction=v), [-0.1, 1.0], "val_fraction must be in [0, 1)"),
    (lambda v: LandsatDataModule(fold=v), [1], "fold must be from 0 to 1 / data.val_fraction - 1"),
    (lambda v: LandsatDataModule(val_fraction=0.25, fold=v), [4, -1], "fold must be from 0 to 1 / data.val_fraction"),
    (Shift, ["frost"], "is no shift: take one of gaussian_noise, "),
    (lambda v: Shift("fog", v), [6], "must be 1 to 5, got"),
    # models
    (lambda v: MLP((3, 2), v), ["tan"], "unknown activation"),
    (lambda v: MLP(v), [[3]], "sizes must name at least the features of the input and of the output"),
    (ResNet, [2, 7, 21], "depth must be 6n + 2"),
    (WideResNet, [17, 4], "depth must be 6n + 4"),
    (lambda v: WideResNet(width=v), [0], "and width >= 1"),
    (lambda v: ResNet(8, shortcut=v), ["C"], "shortcut must be A or B"),
    *[(lambda v, net=net: net(norm=v), ["layer"], "choose batch or") for net in (ResNet, ResNet18, WideResNet)],
    *[(lambda v, net=net: net(activation=v), ["tanh"], "relu or swish") for net in (ResNet, ResNet18, WideResNet)],
    (lambda v: bdl.ChainStack(MLP((6, 2)), v), [0], "chains must be a whole number of at least 1"),
    # runs
    (lambda v: bdl.CollectSamples(EveryStep(0, 1), batchnorm=v), ["none"], '"running" or "refresh"'),
    (lambda v: Polynomial(1.0, b=v), [0], "b must be > 0"),
]  # fmt: skip

# A call, and words of its message.
CALLS = [
    (lambda: bdl.Sampler(nn.Linear(3, 3), bdl.SGLD(), num_data=40, lr=0.1),
     "a Sampler takes parameters, got a network: give it net.named"),
    (lambda: bdl.Sampler([], bdl.SGLD(), num_data=40, lr=0.1), "nothing to sample: the network has no parameters"),
    (lambda: sampler(parameter(2).requires_grad_(False)), "nothing to sample"),
    (lambda: sampler(nn.Parameter(torch.eye(3).to_sparse())), "parameter 0 is a sparse tensor"),
    (lambda: sampler(parameter(3), parameter(3, dtype=torch.float32)), "float32.*float64"),
    (lambda: sampler({"params": [parameter(1)]}, {"params": [parameter(1)]}), "one parameter group"),
    (lambda: sampler().add_param_group({"params": [parameter(2)]}), "one parameter group"),
    (lambda: sampler(prior=1.0), "prior must be an object such as bdl.Gaussian"),
    (lambda: sampler(weighting="flat"), "weighting must be an object such as bdl.Flat"),
    (lambda: sampler(clip=1.0), "clip must be an object such as bdl.ClipNorm"),
    (lambda: sampler(chains=3), r"chains=3 .* parameter 0 is \(4, 2\)"),
    (lambda: sampler(temperature=torch.tensor([1.0, -2.0, 1.0, 1.0]), chains=4), "must be >= 0 and finite, got .*-2"),
    (lambda: sampler(temperature=torch.ones(3), chains=4), "temperature.*3"),
    (lambda: sampler(temperature=torch.ones(4)), "temperature.*4"),
    (lambda: sampler(lr=torch.ones(3), chains=4), "lr.*3"),
    (lambda: sampler(prior=bdl.Gaussian([1.0, 2.0])), "2 scales for 1 parameter"),
    *[(lambda kind=kind: sampler(parameter(2), parameter(2), prior=kind([1.0, 2.0, 3.0])),
       "3 scales for 2 parameter tensors") for kind in (bdl.Gaussian, bdl.Laplace, lambda v: bdl.StudentT(scale=v))],
    (lambda: sampler(exchange=bdl.Exchange()), "needs chains to exchange, got 1"),
    (lambda: bdl.Exchange(rungs=1), "rungs is a number of at least 2 beside ladder=auto, got 1"),
    (lambda: bdl.Exchange(ladder=3), "list of multiples of T, got 3"),
    *[(lambda ladder=ladder: bdl.Exchange(ladder), "two or more rising multiples of T that begin with 1")
      for ladder in ((1.0,), (), (2.0, 4.0), (1.0, 1.0), (1.0, 3.0, 2.0), (1.0, NAN), (0.5, 1.0))],
    (lambda: bdl.SGLD([1.0, -1.0]), "positive"),
    (lambda: bdl.SGLD([1.0, NAN]), "positive"),
    (lambda: bdl.SGLD([[1.0, 2.0], [2.0, 1.0]]), "positive definite"),
    (lambda: bdl.SGLD([[1.0, 0.5], [0.4, 1.0]]), "symmetric"),
    (lambda: bdl.SGLD(grad_var=object()), "a variance >= 0, got <object"),
    (lambda: bdl.SGLD([[1.0, 0.2], [0.2, 1.0]], grad_var=0.1), "diagonal preconditioner"),
    (lambda: sampler(parameter(3), dynamics=bdl.SGLD(torch.ones(2, dtype=D64))), "2 rows .* 3 numbers"),
    (lambda: sampler(parameter(3), dynamics=bdl.SGLD(torch.ones(3))), "float32 .*float64"),
    (lambda: sampler(parameter(1), dynamics=bdl.SMILE()), "at least 2 parameters, got 1"),
    (lambda: bdl.PSGLD(a=0.0, adapt_steps=5), "remembers nothing"),
    (lambda: bdl.SGRLD(adapt_steps=None), "give adapt_steps"),
    (lambda: bdl.HMC(mass="diagonal"), "at least 50 steps to adapt in, got adapt_steps = 0"),
    (lambda: bdl.SGHMC(mass="diagonal", mass_steps=249),
     "at least 250 steps to adapt in at friction 0.1, got mass_steps = 249"),
    (lambda: bdl.SGHMC(friction=1.0, mass="diagonal", mass_steps=49),
     "at least 50 steps to adapt in, got mass_steps = 49"),
    (lambda: bdl.MCLMC().init(torch.zeros(5, 1)), "MCLMC needs at least 2 parameters, got 1"),
    (lambda: bdl.Gaussian([1.0, -2.0]), "-2.0"),
    (lambda: gaussian_prior([0.0, 0.0], [1.0, 0.0]), "variances > 0"),
    (lambda: gaussian_prior([0.0, 0.0, 0.0], [1.0, 1.0]), "needs mean and variance"),
    (lambda: bdl.AdaptiveWeight(edges=[1.0, 2.0, 3.0], low=1.0), "either edges or low and high"),
    (lambda: bdl.AdaptiveWeight(low="1N", high="0.5N"), "low must be below high, got low = 1N, high = 0.5N"),
    (lambda: bdl.AdaptiveWeight(energy="control"), "set refresh > 1"),
    (lambda: bdl.BayesianModule(nn.Linear(2, 2), lambda *_: None, loss=nn.GaussianNLLLoss()),
     "HeteroscedasticNLL"),
    (lambda: bdl.CategoricalNLL()(*CLASSES), "class_axis=-3"),
    (lambda: bdl.CategoricalNLL(class_axis=1), "class_axis is counted from the end"),
    (lambda: TensorBatches(torch.zeros(3, 1), torch.zeros(4), 1), "3 inputs do not match 4 labels"),
    (lambda: TableEncoding.from_plain({"format_version": 3, "columns": []}), "'target' is missing or wrong"),
    (lambda: TableEncoding.from_plain({"format_version": 1, "columns": []}),
     "format_version is 1, and this bdl reads 3"),
    (lambda: Shift("fog")(torch.zeros(2, 3, 8, 8)), r"before they are normalised, got \(2, 3, 8, 8\) torch.float32"),
    (lambda: Shift("fog").of(DataLoader([1])),
     "in memory, such as data=cifar10, got a DataLoader"),
    (lambda: GPT(11, 8, width=10), "width must be a multiple of model.heads, got 10 and 4"),
    (lambda: GPT(11, 8)(torch.zeros(1, 9, dtype=torch.int64)), "9 tokens are more than the model's context of 8"),
    (lambda: bdl.ChainStack(ResNet(8), 3, method="bmm"),
     "bmm needs a Sequential of Linear and elementwise layers, and ResNet has others"),
    (lambda: bdl.ChainStack(MLP((6, 2)), 3)(torch.zeros(4, 6)),
     r"3 chains need x of shape \(3, batch, ...\), got \(4, 6\)"),
    (lambda: bdl.ChainStack(MLP((6, 5, 2)), 2, only="head.*"),
     r"only='head\.\*' matches no parameter: there are 0\.\*, 2\.\*"),
    (lambda: Cycle(3, 4), "4 cycles do not fit into 3 steps"),
    (lambda: Cycle(10, 0), "0 cycles"),
    (lambda: Cycle(10, 1, 1.0), "explore must be in"),
    (lambda: Cycle(10, 1, -0.1), "explore must be in"),
    (lambda: PerCycle(Cycle(10, 1, 0.8), 3), "3 samples do not fit into the 2 sampling steps"),
    (lambda: PerCycle(Cycle(10, 1), 0), "0 samples"),
    (lambda: EveryStep(-1, 1), "burn_in must be >= 0"),
    (lambda: EveryStep(0, 0), "every >= 1"),
]  # fmt: skip


def refusal(call) -> str:
    with pytest.raises(ConfigError) as refused:
        call()
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("call", "value", "words"),
    [pytest.param(call, value, words, id=f"{words}-{value}") for call, values, words in VALUES for value in values],
)
def test_a_value_out_of_range_is_named(call, value, words):
    message = refusal(lambda: call(value))
    assert words in message and str(value) in message, message


@pytest.mark.parametrize(("call", "words"), CALLS, ids=[words for _, words in CALLS])
def test_a_wrong_call_is_refused(call, words):
    assert re.search(words, refusal(call))
