"""Tests of `bdl.samplers.noise`: its numbers are normal to their tails, independent, and the same in C and NumPy."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest

import bdl
from bdl import native
from bdl.samplers import noise
from bdl.samplers.compiled import steps as compiled
from bdl.samplers.noise import SOURCE, Noise, normal, radius, threefry

M = 2**20
EPS = float(np.finfo(np.float32).eps)
in_c = pytest.mark.skipif(native.load(SOURCE) is None, reason="no C compiler")
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0, 0x082EFA98, 0xEC4E6C89)


@pytest.fixture(scope="module")
def z() -> np.ndarray:
    """(4 M,) numbers of one step."""
    return Noise(3, 1).fill(torch.empty(4 * M), 17).double().numpy()


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0,) * 4, (0,) * 4, (0x9C6CA96A, 0xE17EAE66, 0xFC10ECD4, 0x5256A7D8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 4, (0x2A881696, 0x57012287, 0xF6C7446E, 0xA16A6732)),
        (*PI, (0x59CD1DBB, 0xB8879579, 0x86B5D00C, 0xAC8B6D84)),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_the_words_are_the_published_ones(counter, key, words):
    """kat_vectors of Random123, the authors' own code, for threefry4x32 with 20 rounds."""
    assert threefry(key, np.array(counter, dtype=np.uint32)[:, None])[:, 0].tolist() == list(words)


@in_c
@pytest.mark.parametrize("step", [0, 5, 2**32 + 1])
@pytest.mark.parametrize("group", [0, 7, 2**28, 2**31])
def test_both_forms_have_the_same_words(step, group):
    """Beyond group 2^28 a counter has more than 32 bits."""
    ours, words = Noise(1, 2), np.empty((4, noise.LANES), dtype=np.uint32)
    noise._library().bdl_threefry(ours.address, step, group, words.ctypes.data)
    counter = [group * noise.LANES + j for j in range(noise.LANES)]
    rows = [[n % 2**32 for n in counter], [n >> 32 for n in counter], [step % 2**32] * 16, [step >> 32] * 16]
    assert np.array_equal(words, threefry(ours.key, np.array(rows, dtype=np.uint32)))


@in_c
def test_both_forms_agree_to_rounding():
    """Logarithm, root, sine and product each round once or twice in either form; near zero too, relative to itself."""
    ours, theirs = Noise(1, 2).fill(torch.empty(M + 3), 9).numpy(), normal(Noise(1, 2).key, 9, M + 3)
    assert (np.abs(ours - theirs) <= 8 * EPS * np.abs(theirs)).all()


def test_the_numbers_are_standard_normal(z):
    """Each moment within 5 of its standard errors; the largest distance of the distributions by Kolmogorov."""
    x = z[:M]
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10395 - 225)):
        assert abs((x**power).mean() - mean) < 5 * math.sqrt(variance / M), power
    assert kstest(x, "norm").pvalue > 1e-5
    assert kstest(x * 1.02, "norm").pvalue < 1e-5  # what the test can see


@pytest.mark.parametrize("at", [3.0, 3.5, 4.0, 4.5])
def test_as_many_numbers_as_expected_lie_in_the_tails(z, at):
    expected = len(z) * math.erfc(at / math.sqrt(2)) / 2
    for count in ((z > at).sum(), (z < -at).sum()):
        assert abs(count - expected) < 5 * math.sqrt(expected) + 1


@pytest.mark.parametrize("at", [1.0, 3.0, 5.0, 6.0, 6.5])
def test_radius_has_right_law_far_beyond_what_a_count_can_see(at):
    """P(R > r) = exp(-r²/2). R falls with k, so the number of k with a larger R is found by bisection.

    k has 2^31 values, so the tail is right to one of them, and to the rounding of u in single precision.
    """
    low, high = 0, 2**31  # R(low) > at, or low = 0
    while high - low > 1:
        middle = (low + high) // 2
        larger = radius(np.array([2 * middle], dtype=np.uint32))[0] > at
        low, high = (middle, high) if larger else (low, middle)
    wanted = math.exp(-at * at / 2)
    assert abs(high / 2**31 - wanted) <= 2**-31 + wanted * EPS
    assert radius(np.zeros(1, dtype=np.uint32))[0] > 6.7


def correlations(x: np.ndarray, y: np.ndarray) -> list[float]:
    """Of two samples, and of their squares, in standard errors."""
    root = math.sqrt(len(x))
    return [float((x * y).mean()) * root, float(((x * x - 1) * (y * y - 1)).mean()) / 2 * root]


@pytest.mark.parametrize("lag", [1, 2, 15, 16, 17, 32, 48, 64, 1024])
def test_neighbours_are_independent(z, lag):
    """A pair of Box and Muller lies 16 apart, the next pair of a counter 32, and the next group 64."""
    assert max(map(abs, correlations(z[: M - lag], z[lag:M]))) < 5


def test_chains_steps_stacks_and_seeds_are_independent():
    first = Noise(0, 0).fill(torch.empty(2, M // 4), 1000).double().numpy()
    others = [
        first[1],
        *(Noise(0, 0).fill(torch.empty(M // 4), k).numpy() for k in (999, 1001, 1000 + 2**32)),
        Noise(0, 1).fill(torch.empty(M // 4), 1000).numpy(),
        Noise(1, 0).fill(torch.empty(M // 4), 1000).numpy(),
    ]
    assert all(max(map(abs, correlations(first[0], other))) < 5 for other in others)
    assert correlations(first[0], first[0])[0] > 5


def test_a_part_of_a_step_is_the_same_whatever_is_drawn_with_it():
    long, short = (Noise(0, 0).fill(torch.empty(n), 4) for n in (1000, 70))
    assert torch.equal(long[:70], short)
    assert torch.equal(Noise(0, 0).fill(torch.empty(2, 35), 4).flatten(), short)


def sampler(dtype: torch.dtype = torch.float32, **settings) -> bdl.Sampler:
    theta = torch.zeros(2, 100, dtype=dtype, requires_grad=True)
    return bdl.Sampler([theta], settings.pop("dynamics", bdl.SGHMC()), num_data=1, lr=0.1, chains=2, **settings)


def steps(made: bdl.Sampler, n: int) -> torch.Tensor:
    for _ in range(n):
        made.sampled[0].grad = made.sampled[0].detach().clone()
        made.step()
    return made.chain.theta


@pytest.mark.parametrize("dynamics", [bdl.SGHMC(), bdl.SGNHT(), bdl.SGLD(), bdl.PSGLD(), bdl.MeanField(0.1)], ids=str)
def test_a_machine_without_a_compiler_samples_same_to_rounding(dynamics, monkeypatch):
    """20 steps round each number some ten times; the dynamics are stable, so that the errors only add up."""
    ours = steps(sampler(dynamics=dynamics), 20)
    monkeypatch.setattr(noise, "_library", lambda: None)
    monkeypatch.setattr(compiled, "library_of", lambda kind: None)
    theirs = sampler(dynamics=dynamics)
    assert not theirs.moves.compiled.takes(theirs.prior, 1, 0.1, 1.0)
    assert torch.allclose(ours, steps(theirs, 20), rtol=0, atol=20 * 20 * EPS * float(ours.abs().max()))


def test_a_step_that_is_made_again_has_the_same_noise():
    """What follows from a step's number needs no state: another sampler of this seed that is at the step draws it."""
    one, other = sampler(seed=4), sampler(seed=4)
    steps(one, 3)
    other.chain.steps = 3
    assert torch.equal(one.chain.draw(1.0), other.chain.draw(1.0))
    before = one.chain.draw(1.0).clone()
    steps(one, 1)
    assert not torch.equal(one.chain.draw(1.0), before)


def test_double_precision_draws_from_the_generator_of_torch():
    made = sampler(torch.float64)
    before = made.chain.generator.get_state()
    steps(made, 1)
    assert not torch.equal(made.chain.generator.get_state(), before)
    assert not torch.equal(made.chain.z, made.chain.z.float().double()), "as fine as the type"
