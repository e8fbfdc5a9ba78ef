"""Wrong arguments in Python: of sampling in one call, samplers, stacks and posteriors. One line for each."""

import signal

import lightning as L
import pytest
import torch
from repeats import slow_where
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
)
from toys import K, N, tensors

import bdl
from bdl.errors import BdlWarning, ConfigError
from bdl.schedules import EveryStep

X, Y = tensors()


class Loss(nn.Module):
    """A network whose outputs are what a function makes of Linear's."""

    def __init__(self, function, layer: nn.Module | None = None):
        super().__init__()
        self.layer, self.function = layer or nn.Linear(3, K), function

    def forward(self, x):
        return self.function(self.layer(x))


class Items(Dataset):
    def __len__(self) -> int:
        return N

    def __getitem__(self, row: int):
        return X[row], Y[row] + 5


class Stream(IterableDataset):
    def __iter__(self):
        yield X[0], Y[0]


def loader(x: torch.Tensor = X, y: torch.Tensor = Y, **settings) -> DataLoader:
    return DataLoader(TensorDataset(x, y), **{"batch_size": 10, **settings})


def embedding(**settings) -> nn.Module:
    layer = nn.Embedding(9, K, **settings)
    return nn.Sequential(Loss(lambda x: x, nn.Identity()), _Lookup(layer))


class _Lookup(nn.Module):
    def __init__(self, layer: nn.Embedding):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x[:, 0].long().clamp(0, 8))


SAMPLE = {
    "no parameters": (dict(net=nn.Tanh()), "nothing to sample: the network has no parameters"),
    "no parameters in a stack": (dict(net=nn.Tanh(), chains=2), "nothing to sample: the network has no parameters"),
    "lazy": (dict(net=nn.LazyLinear(3)), "weight belongs to a lazy layer and has no values yet"),
    "lazy in a stack": (dict(net=nn.LazyLinear(3), chains=2), "weight belongs to a lazy layer"),
    "meta": (dict(net=nn.Linear(3, 3, device="meta")), "weight is on the device meta and has no values yet"),
    "sparse gradients": (dict(net=embedding(sparse=True)), "a layer gives sparse gradients: build it with"),
    "DataParallel": (dict(net=nn.DataParallel(nn.Linear(3, 3))), "DataParallel wraps the network: give its .module"),
    "no network": (dict(net="mlp"), "bdl.sample needs a network, or .*, got 'mlp'"),
    "a function": (dict(net=lambda: 3, chains=2), "function that builds it, got one that returns 3"),
    "a loss by name": (dict(loss="mse"), "a loss is a likelihood such as .*, or a function, got 'mse'"),
    "a class of losses": (dict(loss=bdl.CategoricalNLL), "a loss is a likelihood such as"),
    "no rule": (dict(keep=5), "keep must be a rule such as bdl.schedules.EveryStep"),
    "half a step": (dict(steps=6.5), "steps must be a whole number of at least 1, got 6.5"),
    "no step": (dict(steps=0), "steps must be a whole number of at least 1, got 0"),
    "half a chain": (dict(chains=2.5), "chains must be a whole number of at least 1, got 2.5"),
    "True steps": (dict(steps=True), "steps must be a whole number of at least 1, got True"),
    "half a seed": (dict(seed=0.5), "seed must be a whole number of at least 0, got 0.5"),
    "no checkpoint": (dict(checkpoint_every=0), "every of SaveLast must be a whole number of at least 1, got 0"),
    "half a row": (dict(monitor_every=1.5), "every of Monitor must be a whole number of at least 1, got 1.5"),
    "start": (dict(start="warm"), 'start must be "fresh", "given" or None, got \'warm\''),
    "test": (dict(test=3), "test must be a loader of labelled batches, or a dict of several, got 3"),
    "callback": (dict(callbacks=[1]), r"callbacks must be a list of Lightning's callbacks, got \[1\]"),
    "accelerator": (dict(accelerator="tpux"), "accelerator='tpux' and these callbacks: .*tpux"),
    "a misspelled argument": (dict(temprature=0.5), r"temprature is no argument .* \(did you mean temperature\?\)"),
    "a prior by name": (dict(prior="gaussian"), "prior must be an object such as bdl.Gaussian.*, got 'gaussian'"),
    "a prior's number": (dict(prior=1.0, chains=2), "prior must be an object such as bdl.Gaussian.*, got 1.0"),
    "a schedule by name": (dict(schedule="cosine"), "schedule must be an object such as bdl.Schedule"),
    "endless T": (dict(temperature=float("inf")), "temperature must be >= 0 and finite, got inf"),
    "a loss without a gradient": (dict(loss=lambda o, y: torch.tensor(1.0)), "the loss has no gradient: compute it"),
    "no data": (dict(loader=loader(X[:0], Y[:0])), "the loader has no batch of its 0 items"),
    "no batch": (dict(loader=loader(batch_size=100, drop_last=True)), "the loader has no batch of its 40 items"),
    "a stream": (dict(loader=DataLoader(Stream())), "over a data set with a length, got DataLoader: .* needs num_data"),
    "classes": (dict(loader=loader(y=Y + 5)), "y has 10 of 10 values that are none of the 3 classes; the first is"),
    "classes of items": (dict(loader=DataLoader(Items(), 10)), "y has 10 of 10 values that are none of the 3 classes"),
    "width": (dict(net=nn.Linear(4, 3)), r"Linear does not take the inputs float32 \(10, 3\): mat1 and mat2 shapes"),
    "width of a stack": (dict(net=nn.Linear(4, 3), chains=2), r"does not take the inputs float32 \(10, 3\): "),
    "type": (dict(loader=loader(X.double())), r"Linear does not take the inputs float64 \(10, 3\): mat1 and mat2 must"),
    "one item for BatchNorm": (
        dict(net=nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), loader=loader(batch_size=1)),
        "Sequential does not take the inputs .* Expected more than 1 value per channel",
    ),
    "too few values for a filter": (
        dict(net=nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 3, 5), nn.Flatten())),
        "Sequential does not take the inputs .* Kernel size can't be greater than actual input size",
    ),
    "two outputs": (dict(net=Loss(lambda x: (x, 1))), r"Loss.forward returns tuple\(float32 \(10, 3\), int\), and bdl"),
    "two outputs of a stack": (dict(net=Loss(lambda x: (x, 1)), chains=2), "Loss.forward returns tuple"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLE)
def test_what_cannot_be_sampled_is_one_line(tmp_path, name):
    changed, words = SAMPLE[name]
    arguments = dict(net=nn.Linear(3, K), loss=None, loader=loader(), steps=4, lr=0.01, keep=EveryStep(1, 1)) | changed
    with pytest.raises(ConfigError, match=words) as refused:
        bdl.sample(run_dir=tmp_path, **{"accelerator": "cpu"} | arguments)
    assert "\n" not in str(refused.value)


def closure_of(net: nn.Module, sampler: bdl.Sampler, backward: bool = True, to_none: bool = True):
    def closure():
        sampler.zero_grad(to_none)
        loss = nn.functional.cross_entropy(net(X), Y)
        if backward:
            loss.backward()
        return loss

    return closure


@pytest.mark.parametrize("dynamics", [bdl.SGLD(), bdl.HMC()], ids=lambda d: type(d).__name__)
def test_a_closure_without_a_backward_pass_is_refused(dynamics):
    """At the first step there is no gradient. Later those of an earlier step would be taken, without a word."""
    net = nn.Linear(3, K)
    sampler = bdl.Sampler(net.parameters(), dynamics, num_data=N, lr=0.01)
    before = [p.detach().clone() for p in net.parameters()]
    loss_alone = lambda: nn.functional.cross_entropy(net(X), Y)  # noqa: E731
    with pytest.raises(ConfigError, match=r"no parameter has a gradient at step 0: call loss.backward\(\) in the clos"):
        sampler.step(loss_alone)
    assert all(map(torch.equal, net.parameters(), before))
    for to_none in (True, False, True):
        sampler.step(closure_of(net, sampler, to_none=to_none))
    with pytest.raises(ConfigError, match="has back-propagated nothing at step 3.*call loss.backward"):
        sampler.step(loss_alone)
    if sampler.dynamics.full_batch:  # which evaluates its closure anew
        return
    loss = loss_alone()
    sampler.zero_grad()
    loss.backward()
    sampler.step(lambda: loss)  # before the step is early enough


def test_two_samplers_on_one_network_are_refused_once_both_step():
    net = nn.Linear(3, K)
    first, second = (bdl.Sampler(net.parameters(), bdl.SGLD(), num_data=N, lr=0.01) for _ in range(2))
    second.step(closure_of(net, second))
    with pytest.raises(ConfigError, match="another Sampler was built on these parameters"):
        first.step(closure_of(net, first))
    second.step(closure_of(net, second))
    net.double().float()
    second.step(closure_of(net, second))  # others than samplers may move the parameters


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_parameter_hooks_are_refused_by_a_stack_or_called_on_it(register):
    net, calls = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, K)), []
    handle = getattr(net[0].weight, register)(lambda value: calls.append(1))
    with pytest.raises(ConfigError, match="0.weight has a hook .*: remove it, and register it on stack.net's"):
        bdl.ChainStack(net, 2)
    handle.remove()
    stack = bdl.ChainStack(net, 2, shared=True)
    getattr(stack.net[0].weight, register)(lambda value: calls.append(1))
    gradient = bdl.engine.choose.choose_gradient(stack, bdl.CategoricalNLL())
    gradient.write(X, Y, [torch.empty_like(p) for p in gradient.params])
    assert calls == [1]


@pytest.fixture(scope="module")
def posterior(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return bdl.sample(
        nn.Linear(3, K), None, loader(), folder, steps=3, lr=0.01, accelerator="cpu", keep=EveryStep(1, 1)
    )


PREDICT = {
    "width": (torch.zeros(5, 4), r"Linear does not take the inputs float32 \(1, 4\): mat1 and mat2"),
    "an item alone": (torch.zeros(3), "Linear does not take the inputs float32"),
    "None": (None, "nothing to predict, got None: give inputs"),
    "an object": (object(), "nothing to predict, got <object object .*: give inputs"),
    "sparse": (torch.eye(3).to_sparse(), "the inputs are a sparse tensor"),
    "sparse in a tuple": ((torch.eye(3).to_sparse(),), "the inputs are a sparse tensor"),
    "nothing": (torch.zeros(0, 3), "there are no items to predict: give at least one"),
}


@pytest.mark.parametrize("name", PREDICT)
def test_what_cannot_be_predicted_is_one_line(posterior, name):
    x, words = PREDICT[name]
    with pytest.raises(ConfigError, match=words):
        posterior.predict(x)


def test_nan_in_inputs_is_counted_and_named(posterior):
    x = X.clone()
    x[[4, 7], 1] = float("nan")
    with pytest.warns(BdlWarning, match="2 of 40 items, 4 the first, have outputs that are not finite"):
        assert posterior.predict(x).probs[4].isnan().all()
    assert posterior.predict(X).probs.isfinite().all()


@pytest.mark.parametrize(
    "kind", slow_where(lambda kind: kind is not torch.uint8, [torch.int32, torch.uint8, torch.bool])
)
def test_classes_of_any_whole_type_are_sampled(tmp_path, kind):
    y, energies = Y % 2, []
    for labels in (y, y.to(kind)):
        folder = tmp_path / str(labels.dtype)
        common = {"steps": 3, "lr": 0.01, "accelerator": "cpu", "keep": EveryStep(1, 1), "test": loader(y=labels)}
        torch.manual_seed(0)
        found = bdl.sample(nn.Linear(3, K), None, loader(y=labels), folder, **common)
        energies.append(found.records[-1].energy_full)
    assert energies[0] == energies[1]


def test_a_batch_sampler_of_ones_own_is_read_in_its_size(tmp_path):
    order = BatchSampler(RandomSampler(range(N)), 10, drop_last=False)
    data = DataLoader(TensorDataset(X, Y), batch_sampler=order)
    common = {"steps": 3, "lr": 0.01, "accelerator": "cpu", "keep": EveryStep(1, 1), "full_energy": True}
    assert bdl.sample(nn.Linear(3, K), None, data, tmp_path, **common).records[-1].energy_full is not None


def test_no_run_is_named():
    with pytest.raises(bdl.StoreError, match="no run is named"):
        bdl.Posterior.load([], nn.Linear(3, K))


def test_an_order_that_visits_a_part_of_the_data_is_named(tmp_path):
    part = loader(sampler=SubsetRandomSampler(range(10)))
    with pytest.warns(BdlWarning, match="SubsetRandomSampler visits 10 items, and the posterior is that of all 40"):
        bdl.sample(nn.Linear(3, K), None, part, tmp_path, steps=2, lr=0.01, accelerator="cpu", keep=EveryStep(1, 1))


class Interrupt(L.Callback):
    def __init__(self, after: int | None):
        self.after = after

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == self.after:
            raise KeyboardInterrupt

    def on_fit_end(self, *_):
        if self.after is None:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("after", "kept"),
    [
        (0, "no state was saved yet"),
        (2, "the same call resumes from .*last.ckpt"),
        (None, "all samples are kept in .*: the same call, or bdl.report, makes the report"),
    ],
)
def test_an_interrupt_stays_an_interrupt_and_says_what_is_kept(tmp_path, after, kept):
    """Lightning would exit the interpreter with status 1, and leave Ctrl-C switched off."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=kept) as caught:
        bdl.sample(
            nn.Linear(3, K), None, loader(), tmp_path, steps=3, lr=0.01, accelerator="cpu", keep=EveryStep(1, 1),
            callbacks=[Interrupt(after)], checkpoint_every=1,
        )  # fmt: skip
    assert signal.getsignal(signal.SIGINT) is before
    assert caught.value.__suppress_context__ and not any("lightning" in str(line.path) for line in caught.traceback)


def test_an_interrupted_report_says_that_samples_are_kept(tmp_path, monkeypatch):
    net = nn.Linear(3, K)
    bdl.sample(net, None, loader(), tmp_path, steps=3, lr=0.01, accelerator="cpu", keep=EveryStep(1, 1))
    monkeypatch.setattr("bdl.run.in_python.find_splits", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt, match="all samples are kept in .*: the same call makes the report"):
        bdl.report(tmp_path, net, loader())


def test_the_report_after_a_kill_is_that_of_uninterrupted_run(tmp_path, monkeypatch):
    def call(name: str):
        return bdl.sample(
            nn.Linear(3, K, bias=False).requires_grad_(), None, loader(), tmp_path / name, steps=8, lr=0.01,
            accelerator="cpu", keep=EveryStep(1, 1), test=loader(), monitor_every=2, chains=2,
        )  # fmt: skip

    call("whole")
    with monkeypatch.context() as patch:
        patch.setattr(bdl.Report, "on_fit_end", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            call("killed")
    call("killed")
    assert (tmp_path / "killed/metrics.json").read_bytes() == (tmp_path / "whole/metrics.json").read_bytes()
