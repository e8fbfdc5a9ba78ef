"""Tests of `bdl.lean`. Each runs in a process of its own, because a package is imported once."""

import subprocess
import sys

import pytest

HEAVY = ("torch._dynamo", "torchvision", "transformers", "torchmetrics.functional", "matplotlib")


def answer(code: str) -> str:
    """What a new process prints."""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@pytest.mark.parametrize("module", ["bdl.run.train", "bdl.run.in_python", "bdl.sklearn", "bdl.lightning.module"])
def test_an_import_leaves_out_what_no_run_needs(module):
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    assert answer(code) == "[]"


def test_a_sampler_of_a_trainer_steps_without_the_compiler(tmp_path):
    code = f"""
import sys, torch, bdl
x = torch.randn(30, 2)
loader = bdl.data.TensorBatches(x, x[:, 0].gt(0).long(), 30, chains=2)
bdl.sample(torch.nn.Linear(2, 2), None, loader, {str(tmp_path)!r}, steps=4, lr=0.1, chains=2)
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).zero_grad()
print([name for name in {HEAVY} if name in sys.modules])
"""
    assert answer(code).splitlines()[-1] == "[]"


def test_torchmetrics_is_all_there_for_who_uses_it():
    code = """
import bdl.lean, torchmetrics, torch
assert torchmetrics.Metric is bdl.lean.L.pytorch.core.module.Metric
accuracy = torchmetrics.Accuracy("multiclass", num_classes=3)
from torchmetrics import Metric
from torchmetrics.functional import mean_squared_error
print(isinstance(accuracy, Metric), torchmetrics.functional.accuracy is not None, "MeanMetric" in dir(torchmetrics))
"""
    assert answer(code) == "True True True"


def test_a_metric_draws_itself_with_the_matplotlib_that_its_import_left_out():
    code = """
import sys, bdl.lean, torch
from torchmetrics import Metric
class Mean(Metric):
    def __init__(self):
        super().__init__()
        self.add_state("total", torch.zeros(()))
    def update(self, x):
        self.total += x.mean()
    def compute(self):
        return self.total
    def plot(self):
        return self._plot()
before, mean = "matplotlib" in sys.modules, Mean()
mean.update(torch.ones(3))
figure, axes = mean.plot()
import torchmetrics.utilities.plot as drawing
print(before, type(figure).__name__, hasattr(drawing, "plot_confusion_matrix"))
"""
    assert answer(code) == "False Figure True"


def test_the_compiler_disables_and_unwraps_once_it_is_imported():
    code = """
import bdl.lean, torch, lightning.pytorch.utilities.compile as of_lightning
compiling = []
@bdl.lean.disable
def plain(x):
    compiling.append(torch.compiler.is_compiling())
    return x
net = torch.nn.Linear(1, 1)
found = [isinstance(net, of_lightning.OptimizedModule)]
plain(torch.ones(1))
torch.compile(lambda x: plain(2 * x) + 1, backend="eager")(torch.ones(1))
found.append(isinstance(torch.compile(net, backend="eager"), of_lightning.OptimizedModule))
print(found, compiling)
"""
    assert answer(code) == "[False, True] [False, False]"


def test_operations_are_counted_without_the_compiler_unless_a_network_uses_it():
    code = """
import sys, torch, bdl
from bdl.tune.trial import Problem
from bdl.tune.work import trial_steps
class Net(torch.nn.Linear):
    asks = False
    def forward(self, x):
        if self.asks:
            import torch._dynamo
            assert torch._dynamo.config.recompile_limit > 0
        return super().forward(x)
def count(net):
    stack = bdl.ChainStack(net, 2, seed=0)
    trial_steps(Problem(stack, bdl.CategoricalNLL(), (torch.ones(9, 2), torch.ones(9)), 9, 9, 1.0, 0), 100)
    return "torch._dynamo" in sys.modules
first = count(Net(2, 2))
Net.asks = True
print(first, count(Net(2, 2)))
"""
    assert answer(code).splitlines()[-1] == "False True"


@pytest.mark.parametrize(
    "package", ["data", "engine", "likelihoods", "metrics", "models", "posterior", "samplers", "tune"]
)
def test_a_package_of_bdl_is_there_after_import_bdl(package):
    line = f"import bdl; print(bdl.{package}.__name__)"
    assert subprocess.run([sys.executable, "-c", line], capture_output=True, text=True).stdout == f"bdl.{package}\n"
