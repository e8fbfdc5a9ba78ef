"""An independent reference for test_network.py: NUTS from blackjax, run in a process without torch.

python nuts.py <npz with x (N, 2), y (N,), points (K, 2)> <npz for `draws` (S, C, K + 2)> <S> <seed>

It runs in a separate process because JAX's threads do not survive the forks that other tests make.
"""

import os
import sys

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import blackjax  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

HIDDEN, CHAINS, BURN_IN, STEP = 12, 64, 40, 0.15  # this STEP gives acceptance .75, trees of 32 steps
SPLITS = (2 * HIDDEN, 3 * HIDDEN, 4 * HIDDEN)  # w (H, 2), b (H,), v (H,), c (1,)

if __name__ == "__main__":
    source, target, count, seed = sys.argv[1:]
    data = {name: jnp.asarray(value) for name, value in np.load(source).items()}

    def logit(theta, x):
        w, b, v, c = jnp.split(theta, SPLITS)
        return jnp.tanh(x @ w.reshape(HIDDEN, 2).T + b) @ v + c

    def nll(theta):
        return jax.nn.softplus((1 - 2 * data["y"]) * logit(theta, data["x"])).sum()

    def energy(theta):
        return nll(theta) + theta @ theta / 2

    kernel = blackjax.nuts(lambda t: -energy(t), STEP, jnp.ones(4 * HIDDEN + 1), max_num_doublings=6)

    def step(state, key):
        state, _ = jax.vmap(kernel.step)(jax.random.split(key, CHAINS), state)
        return state, jax.vmap(lambda t: jnp.append(logit(t, data["points"]), jnp.stack([nll(t), energy(t)])))(
            state.position
        )

    start = jax.random.normal(jax.random.key(int(seed)), (CHAINS, 4 * HIDDEN + 1))
    keys = jax.random.split(jax.random.key(int(seed) + 1), BURN_IN + int(count))
    _, draws = jax.jit(lambda state: jax.lax.scan(step, state, keys))(jax.vmap(kernel.init)(start))
    np.savez(target, draws=np.asarray(draws)[BURN_IN:])
