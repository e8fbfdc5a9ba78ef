"""An independent reference for test_isokinetic.py: NUTS from blackjax on a logistic regression.

python nuts_logistic.py <npz with X (N, p), y (N,)> <npz for `draws` (S, C, p)> <S> <seed>

The prior is N(0, 1). It runs in a separate process because JAX's threads do not survive the forks of other tests.
"""

import os
import sys

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import blackjax  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

CHAINS, BURN_IN, STEP = 32, 50, 0.06  # curvatures of U reach 150

if __name__ == "__main__":
    source, target, count, seed = sys.argv[1:]
    X, y = (jnp.asarray(np.load(source)[name], jnp.float32) for name in ("X", "y"))

    def log_density(w):
        return -jax.nn.softplus((1 - 2 * y) * (X @ w)).sum() - w @ w / 2

    kernel = blackjax.nuts(log_density, STEP, jnp.ones(X.shape[1]), max_num_doublings=6)

    def step(state, key):
        state, _ = jax.vmap(kernel.step)(jax.random.split(key, CHAINS), state)
        return state, state.position

    start = jax.random.normal(jax.random.key(int(seed)), (CHAINS, X.shape[1]))
    keys = jax.random.split(jax.random.key(int(seed) + 1), BURN_IN + int(count))
    _, draws = jax.jit(lambda state: jax.lax.scan(step, state, keys))(jax.vmap(kernel.init)(start))
    np.savez(target, draws=np.asarray(draws)[BURN_IN:])
