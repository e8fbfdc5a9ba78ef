"""`bench.py bde`: the sampling phase of bde (MILE, microcanonical Langevin) against bdl, on whole Landsat.

bde samples with the gradient of the whole data set, so everything here does. A whole fit, which trains, tunes its step
size for thousands of steps and then samples, takes minutes: `bench.py bde_fit` measures it. Timed here is one gradient
of one chain while it samples. The law is checked on the linear regression of `bench.py jax`.
"""

import functools
from dataclasses import dataclass, replace

from bde.sampler.mile_wrapper import MileWrapper  # type: ignore[import-not-found]

import bdl
from bdl.data import LandsatDataModule, TensorBatches
from bdl.models import MLP
from benchmarks.speed.jax_kernels import JaxScan, Network, jax, jnp, np  # first: it sets the flags of XLA
from benchmarks.speed.law import compare, record
from benchmarks.speed.problem import Problem, Quadratic, landsat, regression
from benchmarks.speed.timing import Times, interleave, per_step, ratio, timed
from benchmarks.speed.torch_kernels import SamplerLoop, time_like_train

CHAINS = 8
GRADIENTS = 2  # one step takes two: the integrator, isokinetic McLachlan, moves θ twice
BLOCK = 10  # steps in one call of a jitted scan
STEPS, WARM_UP, KEEP_EVERY = 100, 10, 50  # of a fit of bdl; the warm-up is not timed


class MileScan:
    """`block` steps of bde's kernel in one call of a jitted scan, as its `sample_batched` runs them.

    step_size: the distance that θ moves in a step. length: the distance after which its direction is forgotten.
    """

    def __init__(self, problem: Problem, chains: int, block: int, step_size: float, length: float):
        net, p = Network(problem), problem

        def log_density(theta: jax.Array) -> jax.Array:
            return -(p.num_data * net.mean_nll(theta, (net.x, net.y)) + theta @ theta / 2) / p.temperature

        kernel = MileWrapper(log_density)
        move = jax.vmap(lambda key, state: kernel.step(key, state, jnp.asarray(length), jnp.asarray(step_size))[0])

        def step(states, key: jax.Array):
            return move(jax.random.split(key, chains), states), None

        self.scan = jax.jit(lambda states, key: jax.lax.scan(step, states, jax.random.split(key, block))[0])
        self.key, start, first = jax.random.split(jax.random.key(2), 3)
        self.states, self.block = kernel.init_batched(net.start(start, chains), jax.random.split(first, chains)), block

    def run(self) -> None:
        self.key, key = jax.random.split(self.key)
        self.states = jax.block_until_ready(self.scan(self.states, key))

    def theta(self) -> np.ndarray:
        """(chains, d) parameters."""
        return np.asarray(self.states.position)


@dataclass(frozen=True)
class Isokinetic(Problem):
    """The same target distribution, sampled by the dynamics of bde, MCLMC; a batch is all rows, for all chains."""

    def stack(self, chains: int) -> bdl.ChainStack:
        return bdl.ChainStack(MLP(self.sizes), chains, shared=True)

    def batches(self, chains: int | None) -> TensorBatches:
        return super().batches(None)

    def sampler(self, params, chains: int | None = None) -> bdl.Sampler:
        return bdl.Sampler(
            params, bdl.MCLMC(), num_data=self.num_data, lr=self.lr, temperature=self.temperature, chains=chains
        )


def bench(rounds: int) -> tuple[Times, dict[str, float]]:
    check_law()
    problem, test = landsat(), LandsatDataModule().slices("test")
    problem = replace(problem, batch=problem.num_data)
    isokinetic = Isokinetic(**vars(problem))
    fit = functools.partial(time_like_train, isokinetic, CHAINS, WARM_UP + STEPS, WARM_UP, KEEP_EVERY, test)
    mile = MileScan(problem, CHAINS, BLOCK, step_size=0.05, length=1.0)
    scan = JaxScan(problem, CHAINS, BLOCK)
    chain_gradients = functools.partial(per_step, steps=CHAINS)
    times = interleave(
        {
            "bde MILE": chain_gradients(per_step(timed(mile.run, 1), GRADIENTS * BLOCK)),
            "bdl train.py, MCLMC": chain_gradients(per_step(fit, GRADIENTS)),
            "bdl Sampler.step": chain_gradients(timed(SamplerLoop(problem, CHAINS).step, BLOCK)),
            "JAX scan of SGHMC": chain_gradients(per_step(timed(scan.run, 1), BLOCK)),
        },
        rounds,
    )
    base = times["bde MILE"]
    return times, {
        f"{name} / bde MILE, per gradient of {problem.num_data:,} rows and one of {CHAINS} chains": ratio(t, base)
        for name, t in times.items()
        if name != "bde MILE"
    }


def check_law() -> None:
    """Its steps are unadjusted; this step size makes their bias much smaller than a standard error."""
    problem = regression()
    mile = MileScan(problem, 64, BLOCK, step_size=0.05, length=0.3)
    limit = problem.dim * problem.temperature / 2
    compare("bde MILE", Quadratic(problem).energy(record(mile.run, mile.theta, 1000)), limit, limit)
