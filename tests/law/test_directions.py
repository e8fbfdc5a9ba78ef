"""Tests of `bdl.law.directions`: the temperature along directions, on laws of which it is known."""

import math

import pytest
import torch

from bdl.law.directions import DirectionReading, read_blocks, read_directions, temperatures, top_directions

CHAINS, STATES, D = 8, 60, 12
CURVATURE = torch.logspace(3, 0, D, dtype=torch.float64)  # of U along each coordinate, nats
RANDOM = torch.Generator().manual_seed(0)


def gaussian(theta):
    return CURVATURE * theta


def low(d):
    return d.ratio - 2 * d.error


def high(d):
    return d.ratio + 2 * d.error


def signs(*shape):
    return torch.randint(0, 2, shape, generator=RANDOM).double() * 2 - 1


def measured(ratios, temperature=1.0):
    """Temperatures over T by name of draws from a Gaussian with these ratios of variance, along its first coordinates
    and in two blocks."""
    t = torch.full((CHAINS,), temperature, dtype=torch.float64)
    v = torch.eye(D, dtype=torch.float64)[:3].expand(CHAINS, 3, D)
    steep, found = CURVATURE[:3].expand(CHAINS, 3), []
    for _ in range(STATES):
        z = torch.randn(CHAINS, D, generator=RANDOM, dtype=torch.float64)
        theta = z * (temperature * ratios / CURVATURE).sqrt()
        here = (gaussian(theta),) * 2
        of_noise = read_directions(gaussian, here, theta, t, v, steep, signs(CHAINS, 3))
        of_blocks = read_blocks(
            gaussian,
            here,
            theta,
            theta,
            t,
            CURVATURE[0].expand(CHAINS),
            signs(CHAINS, D),
            lambda x: list(x.split(6, -1)),
        )
        found.append((of_noise, *of_blocks))
    names = (["v1", "v2", "v3"], ["all", "stiff", "soft"], ["spread/all", "spread/stiff", "spread/soft"])
    each = [temperatures(n, r, t.expand(STATES, CHAINS)) for n, r in zip(names, zip(*found, strict=True), strict=True)]
    return {d.name: d for kind in each for d in kind}


@pytest.mark.parametrize("temperature", [1.0, 1e-4])
def test_every_direction_of_the_law_is_at_its_temperature(temperature):
    found = measured(torch.ones(D, dtype=torch.float64), temperature)
    assert len(found) == 9
    for d in found.values():
        assert abs(d.ratio - 1) < 4 * d.error, d
    assert found["all"].error < 0.1  # it would see a tenth


def test_a_right_mean_with_hot_stiff_directions_is_seen():
    ratios = torch.tensor([4.0] * 3 + [0.2] * 3 + [0.4] * 6, dtype=torch.float64)
    ratios = ratios / ratios.mean()  # as a thermostat makes it
    found = measured(ratios)
    assert abs(found["spread/all"].ratio - 1) < 4 * found["spread/all"].error
    assert low(found["v1"]) > 1.25 and low(found["stiff"]) > 1.25
    assert high(found["spread/soft"]) < 0.8
    for name, expected in (("v1", ratios[0]), ("v2", ratios[1]), ("spread/soft", ratios[6:].mean())):
        assert abs(found[name].ratio - float(expected)) < 4 * found[name].error


def test_kinks_count_as_curvature():
    """U = 3 |x| + x²/2 has a kink at 0: second derivatives alone would say that the law is three times too hot."""
    grid = torch.linspace(-6, 6, 200_001, dtype=torch.float64)
    weights = torch.exp(-3 * grid.abs() - grid.square() / 2)
    rows, one = [], torch.ones(CHAINS, dtype=torch.float64)

    def gradient(theta):
        return 3 * theta.sign() + theta

    for _ in range(400):
        x = grid[torch.multinomial(weights, CHAINS, replacement=True, generator=RANDOM)][:, None]
        v = torch.ones(CHAINS, 1, 1, dtype=torch.float64)
        rows.append(
            read_directions(gradient, (gradient(x),) * 2, x, one, v, torch.full((CHAINS, 1), 9.0), signs(CHAINS, 1))
        )
    (d,) = temperatures(["x"], rows, one.expand(400, CHAINS))
    assert d.error < 0.05 and abs(d.ratio - 1) < 4 * d.error
    smooth = torch.stack([r.square for r in rows]).mean()  # over a second derivative of 1 everywhere
    assert smooth > 5


def test_parts_of_the_data_with_noise_of_their_own_leave_no_bias():
    def noisy(theta):
        g = CURVATURE * theta
        noise = 2 * CURVATURE.sqrt() * torch.randn(2, *theta.shape, generator=RANDOM, dtype=torch.float64)
        return (g + noise[0], g + noise[1]) if not noisy.same else (g + noise[0], g + noise[0])

    noisy.same = False
    squares = [_squares(noisy) for _ in range(2)]
    noisy.same = True
    biased = _squares(noisy)
    assert all(abs(s - 1) < 0.25 for s in squares), squares
    assert biased > 3  # one part used twice adds its variance, four times the curvature


def test_noise_that_all_chains_share_is_in_the_error():
    """A part of the rows reads all chains of a state. By the differences between chains alone 1 is 10 errors away."""
    away = []
    for _ in range(200):
        shared, own = torch.randn(8, 1, 1, generator=RANDOM), torch.randn(8, 32, 1, generator=RANDOM)
        rows = [
            DirectionReading((1 + 2 * a + b).double(), torch.ones(32, 1).double())
            for a, b in zip(shared, own, strict=True)
        ]
        (d,) = temperatures(["x"], rows, torch.ones(8, 32).double()) or [None]
        if d is not None:
            away.append((d.ratio - 1) / d.error)
    assert len(away) > 150 and 0.5 < float(torch.tensor(away).std()) < 2


def _squares(gradients):
    """Mean of (v·∇U)² over v'∇²U v on draws of the law."""
    total = []
    for _ in range(400):
        theta = torch.randn(CHAINS, D, generator=RANDOM, dtype=torch.float64) / CURVATURE.sqrt()
        a, b = gradients(theta)
        total.append((a * b / CURVATURE).mean())
    return float(torch.stack(total).mean())


def test_the_noisiest_directions_are_found():
    scale = torch.tensor([10.0, 5.0] + [0.1] * (D - 2), dtype=torch.float64)
    gradients = scale * torch.randn(24, 3, D, generator=RANDOM, dtype=torch.float64)
    v, variances = top_directions(gradients, 6)
    assert v.shape == (3, 6, D)
    assert torch.allclose(v @ v.mT, torch.eye(6, dtype=torch.float64).expand(3, 6, 6), atol=1e-6)
    assert bool((v[:, 0, 0].abs() > 0.9).all()) and bool((v[:, 1, 1].abs() > 0.9).all())
    assert math.isclose(float(variances[:, 0].mean()), 100, rel_tol=0.6)


def test_directions_made_of_rounding_are_left_out():
    """Gradients of a softmax with two classes lie in half of the space: the second half is minus the first."""
    half = torch.randn(24, 3, 4, generator=RANDOM)
    v, variances = top_directions(torch.cat([half, -half * (1 + 1e-7)], -1), 6)
    assert v.shape == (3, 4, 8) and float(variances.min()) > 0.1
    assert torch.allclose(v[..., :4], -v[..., 4:], atol=1e-4)


def test_a_direction_that_the_states_leave_open_is_left_out():
    ones, t = torch.ones(CHAINS, 1, dtype=torch.float64), torch.ones(STATES, CHAINS, dtype=torch.float64)
    noise = [
        DirectionReading(ones, 1 + 30 * torch.randn(CHAINS, 1, generator=RANDOM, dtype=torch.float64))
        for _ in range(STATES)
    ]
    assert temperatures(["x"], noise, t) == []
    assert len(temperatures(["x"], [DirectionReading(ones, ones)] * STATES, t)) == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("states", [8, 64])  # of the first, each makes a part by itself
def test_one_chain_has_an_error_from_its_parts(states):
    t, one = torch.ones(states, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    draws = torch.randn(states, generator=RANDOM, dtype=torch.float64).square()
    (d,) = temperatures(["x"], [DirectionReading(x.view(1, 1), one) for x in draws], t)
    assert 0.08 < d.error < 0.8 and abs(d.ratio - 1) < 4 * d.error
