"""`Graphs`: what is recorded when, what a recording reads, and how a bad step is found without running Python."""

import copy

import pytest
import torch
from tape import Tape, Tapes
from torch import Tensor

import bdl
from bdl.engine.graphs import Graphs, record_on_cuda, recorder_for
from bdl.samplers.divergence import DivergenceWatch
from bdl.samplers.potential import BoundGradient

HERE = torch.device("cpu")


class Doubles:
    """Work that reads a held batch: twice the batch, less what Python knows."""

    def __init__(self) -> None:
        self.tapes, self.calls, self.number = Tapes(), 0, 0.0
        self.graphs = Graphs(self.tapes)
        self.reads: tuple[object, ...] = (self,)

    def __call__(self, batch: Tensor, key: object = "doubles") -> Tensor:
        (x,) = self.graphs.hold(batch)

        def work() -> Tensor:
            self.calls += 1
            return 2 * x - self.number

        return self.graphs.run(work, key, self.reads)


def test_second_run_is_recorded_and_further_ones_launch_record():
    double = Doubles()
    for k in range(5):
        assert double(torch.full((3,), float(k))).tolist() == [2.0 * k] * 3
    assert (double.calls, len(double.tapes.made), double.tapes.launches) == (2, 1, 4)


def test_a_record_reads_the_batch_and_not_python():
    double = Doubles()
    for _ in range(2):
        double(torch.ones(3))
    double.number = 1.0
    assert double(torch.ones(3)).tolist() == [2.0] * 3  # why no number of a step may be in it


def test_each_key_has_its_own_record():
    double = Doubles()
    for k in range(4):
        for key in "ab":
            assert double(torch.full((3,), float(k)), key)[0] == 2 * k
    assert [tape.launches for tape in double.tapes.made] == [3, 3]


@pytest.mark.parametrize(
    "change",
    [
        lambda double: torch.ones(4),
        lambda double: torch.ones(3, dtype=torch.float64),
        lambda double: torch.ones(6)[::2],
        lambda double: setattr(double, "reads", (object(),)) or torch.ones(3),
        lambda double: setattr(double, "reads", ()) or torch.ones(3),
    ],
    ids=["shape", "type", "strides", "another tensor", "fewer tensors"],
)
def test_what_a_record_cannot_know_is_recorded_anew(change):
    double = Doubles()
    for _ in range(3):
        double(torch.ones(3))
    batch = change(double)
    for _ in range(3):
        double(batch)
    assert [tape.launches for tape in double.tapes.made] == [2, 2] and double.calls == 4


def test_the_batch_is_held_in_one_place():
    graphs = Graphs(Tapes())
    x, y = graphs.hold(torch.ones(3), torch.arange(3))
    again = graphs.hold(torch.zeros(3), torch.arange(3) + 1)
    assert again[0] is x and again[1] is y and x.tolist() == [0.0] * 3 and y.tolist() == [1, 2, 3]


def test_a_copy_has_no_record():
    """A record cannot be copied, and it reads the memory of the original."""
    graphs = Graphs(record_on_cuda)
    (x,) = graphs.hold(torch.ones(3))
    (again,) = copy.deepcopy(graphs).hold(torch.zeros(3))
    assert x.tolist() == [1.0] * 3 and again is not x


def test_there_are_graphs_on_a_gpu_only():
    assert recorder_for(HERE) is None and recorder_for(torch.device("cuda:1")) is not None


def advance(sampler: bdl.Sampler, graphs: Graphs, centre: float, measure: bool = True) -> Tensor:
    """One step for the loss |θ - centre|²/2 of every chain."""
    (c,) = graphs.hold(torch.full((2, 3), centre))

    def gradient(out: list[Tensor]) -> Tensor:
        torch.sub(sampler.chain.theta, c, out=out[0])
        return (sampler.chain.theta - c).square().sum(-1) / 2

    return sampler.advance(BoundGradient(gradient, launch=graphs.run), measure)


def test_an_energy_outlives_the_step_that_measured_it():
    """Step k has centre k, so that energies differ; those of steps without a measurement are None."""
    theta, graphs = torch.zeros(2, 3, requires_grad=True), Graphs(Tapes())
    sampler = bdl.Sampler([theta], bdl.SGD(0.0), num_data=5, lr=0.1, chains=2, prior=bdl.Uniform())
    with torch.no_grad():
        theta[1] = 1.0
    energies, expected = [], []
    for k in range(12):
        before = theta.detach().double()
        advance(sampler, graphs, float(k), measure=k % 2 == 0)
        energies.append(sampler.energy)
        expected.append(2.5 * (before - k).square().sum(-1) if k % 2 == 0 else None)
    assert energies[1::2] == expected[1::2] == [None] * 6
    torch.testing.assert_close(torch.stack(energies[::2]), torch.stack(expected[::2]), rtol=1e-6, atol=1e-6)


def test_a_loaded_state_is_recorded_anew():
    """The watch for bad steps begins again then, and a record would count into the old one."""
    theta, tapes = torch.zeros(2, 3, requires_grad=True), Tapes()
    sampler, graphs = bdl.Sampler([theta], bdl.SGLD(), num_data=5, lr=0.1, chains=2), Graphs(tapes)
    for k in range(6):
        advance(sampler, graphs, 1.0)
        if k == 2:
            sampler.load_state_dict(sampler.state_dict())
    assert [tape.launches for tape in tapes.made] == [2, 2]


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_counter_on_the_device_finds_the_first_bad_step(recorded, bad):
    """Step 5 is bad, step 7 too. The first one is named, whenever the counter is read, also by recorded kernels."""
    watch, total = DivergenceWatch(HERE, at_once=False), torch.zeros(())
    note = Tape(lambda: watch.note(total)).launch if recorded else lambda: watch.note(total)
    for step in range(10):
        total.fill_(bad if step in (5, 7) else 1.0)
        note()
        watch.see(step, total, tuple, lr=0.1)
        if step < 5:
            watch.check(0.1)
        else:
            with pytest.raises(bdl.DivergedError, match="not finite at step 5:"):
                watch.check(0.1)


def test_a_tape_is_as_strict_as_a_graph():
    """Negative controls: it notices a number that the host reads, memory that is gone, and runs nothing at first."""
    memory = [torch.ones(3)]
    with pytest.raises(AssertionError, match="wait for the device"):
        Tape(lambda: memory[0].sum().item())

    def add() -> None:
        memory[0].add_(1)

    tape = Tape(add)
    assert memory[0].tolist() == [1.0] * 3
    tape.launch()
    assert memory[0].tolist() == [2.0] * 3
    memory.clear()
    with pytest.raises(AssertionError, match="freed"):
        tape.launch()
