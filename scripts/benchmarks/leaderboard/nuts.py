"""NUTS of blackjax on a problem of the leaderboard; needs `pip install blackjax`."""

import math
from typing import Any

import numpy as np
import torch

import bdl
from benchmarks.leaderboard.chains import Clock
from benchmarks.leaderboard.problems import Average, Problem

CHAINS = 4
DOUBLINGS = 6  # the most doublings; a trajectory has up to 63 gradients
GRADIENTS = 31  # gradients that a step is expected to take
WARM_UP = 0.4  # share of the steps in which step size and masses adapt


def sample_nuts(problem: Problem, passes: float, seed: int) -> tuple[Average, float]:
    """The average over all draws after the warm-up, and core-seconds without those of the compiler."""
    import blackjax
    import jax

    density, positions = log_density(problem), starts(problem, seed)
    steps = max(20, round(passes / GRADIENTS))
    warm_up = round(WARM_UP * steps)

    def one_chain(key: Any, position: Any) -> Any:
        first, second = jax.random.split(key)
        adaptation = blackjax.window_adaptation(blackjax.nuts, density, max_num_doublings=DOUBLINGS)
        (state, parameters), _ = adaptation.run(first, position, warm_up)  # type: ignore[call-arg]
        kernel = blackjax.nuts(density, **parameters).step

        def step(state: Any, key: Any) -> Any:
            state, _ = kernel(key, state)
            return state, state.position

        return jax.lax.scan(step, state, jax.random.split(second, steps - warm_up))[1]

    keys = jax.random.split(jax.random.key(seed), CHAINS)
    compiled = jax.jit(jax.vmap(one_chain)).lower(keys, positions).compile()
    clock, average = Clock(), Average(problem)
    drawn = jax.block_until_ready(compiled(keys, positions))
    seconds = clock.seconds
    thetas = torch.from_numpy(np.array(drawn)).transpose(0, 1)  # (draws, C, d)
    stack = problem.stack(CHAINS, seed)
    for theta in thetas[:: max(1, len(thetas) // 200)]:
        sizes = [p[0].numel() for p in stack.parameters()]
        for p, part in zip(stack.parameters(), theta.split(sizes, 1), strict=True):
            p.data.copy_(part.view_as(p))
        with torch.no_grad():
            average.add(stack.broadcast(problem.test[0]).clone())
    return average, seconds


def starts(problem: Problem, seed: int) -> Any:
    """(C, d) the parameters at which bdl's chains start too."""
    import jax.numpy as jnp

    return jnp.asarray(torch.cat([p.detach().flatten(1) for p in problem.stack(CHAINS, seed).parameters()], 1).numpy())


def log_density(problem: Problem) -> Any:
    """θ (d,) -> -U, nats, without constants."""
    import jax
    import jax.numpy as jnp

    shapes = [tuple(p.shape[1:]) for p in problem.stack(1, 0).parameters()]
    sizes = [math.prod(shape) for shape in shapes]
    bound = problem.prior.bind(shapes, torch.zeros(sum(sizes)))
    precision = jnp.asarray(torch.as_tensor(bound.precision).float().numpy())
    x, y = (jnp.asarray(a.numpy()) for a in problem.train)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]

    def outputs(theta: Any) -> Any:
        parts = [part.reshape(shape) for part, shape in zip(jnp.split(theta, ends), shapes, strict=True)]
        h = x
        for i in range(0, len(parts), 2):
            h = (jnp.tanh(h) if i else h) @ parts[i].T + parts[i + 1]
        return h

    def log_likelihood(f: Any) -> Any:
        if problem.classes:
            return jnp.take_along_axis(jax.nn.log_softmax(f), y[:, None], 1).sum()
        if isinstance(problem.loss, bdl.GaussianNLL):
            return -0.5 * (((y - f) / problem.loss.std) ** 2).sum()
        scale = jax.nn.softplus(f[:, 1:])
        return (-0.5 * ((y - f[:, :1]) / scale) ** 2 - jnp.log(scale)).sum()

    return lambda theta: log_likelihood(outputs(theta)) - 0.5 * (precision * theta**2).sum()
