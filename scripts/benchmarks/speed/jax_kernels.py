"""SGHMC in JAX, as its users write it: a jitted `lax.scan` of `vmap`ped chains. By hand, and with blackjax's kernel.

The parameters of a chain are one vector and the noise of all chains is one draw, which is the fastest form on a CPU.
XLA gets one core, as torch does.
"""

import os
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import blackjax  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks.speed.problem import Problem  # noqa: E402


class Network:
    """The MLP of a Problem as a function of one vector of parameters, with its data on the device."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.x, self.y = jnp.asarray(problem.x.numpy()), jnp.asarray(problem.y.numpy())

    def outputs(self, theta: jax.Array, x: jax.Array) -> jax.Array:
        sizes, start = self.problem.sizes, 0
        for layer, (fan_in, out) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
            bias = start + fan_in * out
            x = x @ theta[start:bias].reshape(fan_in, out) + theta[bias : bias + out]
            start = bias + out
            if layer < len(sizes) - 2:
                x = jnp.tanh(x)
        return x

    def mean_nll(self, theta: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Mean negative log-likelihood of a batch (x, y), up to a constant."""
        x, y = batch
        outputs = self.outputs(theta, x)
        if self.problem.classes:
            return -jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], 1).mean()
        return 0.5 * jnp.square(y - outputs).sum(-1).mean()

    def start(self, key: jax.Array, chains: int) -> jax.Array:
        return 0.1 * jax.random.normal(key, (chains, self.problem.dim))


class Epochs:
    """Rows of the batches of all chains: every chain walks through the data in an order of its own."""

    def __init__(self, problem: Problem, chains: int):
        self.problem, self.chains = problem, chains
        self.draw = np.random.default_rng(0)
        self.left = np.empty((0, chains, problem.batch), np.int32)

    def rows(self, steps: int) -> jax.Array:
        """(steps, chains, batch). numpy shuffles many times faster than JAX does on a CPU."""
        count, size = self.problem.num_data, self.problem.batch
        batches = count // size
        epochs = -(-(steps - len(self.left)) // batches)
        if epochs > 0:
            orders = self.draw.permuted(np.tile(np.arange(count, dtype=np.int32), (epochs, self.chains, 1)), axis=2)
            orders = orders[..., : batches * size].reshape(epochs, self.chains, batches, size)
            fresh = orders.transpose(0, 2, 1, 3).reshape(-1, self.chains, size)
            self.left = np.concatenate([self.left, fresh])
        rows, self.left = self.left[:steps], self.left[steps:]
        return jnp.asarray(rows)


class Scan:
    """`block` steps of all chains in one call of a jitted scan, with a batch for each chain and each of `calls`."""

    def __init__(self, problem: Problem, chains: int, block: int, calls: int, step: Any, start: Any, seed: int):
        self.scan = jax.jit(lambda s, key, rows: jax.lax.scan(step, s, (jax.random.split(key, calls), rows))[0])
        self.key, key = jax.random.split(jax.random.key(seed))
        self.state, self.epochs = start(key), Epochs(problem, chains)
        self.block, self.calls = block, calls

    def run(self) -> None:
        """`block` steps, which are gradients."""
        self.key, key = jax.random.split(self.key)
        self.state = jax.block_until_ready(self.scan(self.state, key, self.epochs.rows(self.calls)))

    def theta(self) -> np.ndarray:
        """(chains, d) parameters."""
        return np.asarray(self.state[0] if isinstance(self.state, tuple) else self.state)


class JaxScan(Scan):
    """SGHMC by hand: the update of `bdl.SGHMC`."""

    def __init__(self, problem: Problem, chains: int, block: int):
        net, p = Network(problem), problem
        scale = (2 * p.friction * p.lr * p.tau) ** 0.5
        gradient = jax.vmap(jax.grad(net.mean_nll))

        def step(state: tuple[jax.Array, jax.Array], key_and_rows: tuple[jax.Array, jax.Array]):
            (theta, m), (key, rows) = state, key_and_rows
            g = gradient(theta, (net.x[rows], net.y[rows])) + theta / p.num_data
            m = (1 - p.friction) * m - p.lr * g + scale * jax.random.normal(key, theta.shape)
            return (theta + m, m), None

        def start(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            theta = net.start(key, chains)
            return theta, jnp.zeros_like(theta)

        super().__init__(problem, chains, block, block, step, start, seed=0)


class BlackjaxScan(Scan):
    """blackjax.sghmc, which draws its momenta anew before every `INTEGRATION` steps, vmapped and scanned.

    In its units m = h p, the step size is h = sqrt(lr tau) and alpha = a / h. It samples U/T at temperature 1, because
    the momenta that it draws have variance 1 whatever the temperature. All steps between two draws use one batch, as
    its interface has it.
    """

    INTEGRATION = 10

    def __init__(self, problem: Problem, chains: int, block: int):
        net, p = Network(problem), problem
        h = (p.lr * p.tau) ** 0.5

        def log_density(theta: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
            return -(net.mean_nll(theta, batch) + theta @ theta / (2 * p.num_data)) / p.tau

        kernel: Any = blackjax.sghmc(jax.grad(log_density), self.INTEGRATION, alpha=p.friction / h)

        def step(theta: jax.Array, key_and_rows: tuple[jax.Array, jax.Array]):
            key, rows = key_and_rows
            keys = jax.random.split(key, chains)
            return jax.vmap(lambda k, t, r: kernel.step(k, t, (net.x[r], net.y[r]), h))(keys, theta, rows), None

        super().__init__(
            problem, chains, block, block // self.INTEGRATION, step, lambda key: net.start(key, chains), seed=1
        )
