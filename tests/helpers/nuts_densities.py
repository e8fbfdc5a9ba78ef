"""An independent reference for test_against_nuts.py: NUTS from blackjax on the three models, written anew in JAX.

python nuts_densities.py NAME DRAWS prints a JSON of means, standard deviations and Monte Carlo errors of the means.
nuts_densities.json has them: of 8 chains of 4000 draws of eight_schools, 1500 of mixture, 1000 of logistic.
"""

import functools
import json
import sys

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.base.array import array_stats
from densities import MODELS
from jax.scipy.stats import cauchy, dirichlet, norm

jax.config.update("jax_enable_x64", True)
CHAINS, WARM_UP = 8, 1000


def eight_schools(u, data):
    """u: mu, log tau, eta. The half-Cauchy is twice the Cauchy; log tau adds log tau."""
    tau, eta = jnp.exp(u[1]), u[2:]
    prior = norm.logpdf(u[0], 0, 5) + cauchy.logpdf(tau, 0, 5) + u[1] + norm.logpdf(eta).sum()
    parts = {"mu": u[:1], "tau": tau[None], "eta": eta}
    return prior + norm.logpdf(data["y"], u[0] + tau * eta, data["std"]).sum(), parts


def logistic(u, data):
    """u: mu, log tau, alpha of the groups, slopes."""
    tau, alpha, beta = jnp.exp(u[1]), u[2:12], u[12:]
    prior = norm.logpdf(u[0], 0, 2) + norm.logpdf(tau) + u[1] + norm.logpdf(alpha, u[0], tau).sum()
    logits = alpha[data["group"]] + data["x"] @ beta
    likelihood = (data["y"] * logits - jax.nn.softplus(logits)).sum() + norm.logpdf(beta).sum()
    return prior + likelihood, {"mu": u[:1], "tau": tau[None], "alpha": alpha, "beta": beta}


def mixture(u, data):
    """u: the first mean, log distances of the others, logits of two shares against the third, log std."""
    means = jnp.cumsum(jnp.concatenate([u[:1], jnp.exp(u[1:3])]))
    shares, std = jax.nn.softmax(jnp.concatenate([u[3:5], jnp.zeros(1)])), jnp.exp(u[5])
    jacobian = u[1] + u[2] + jnp.log(shares).sum() + u[5]  # of a softmax with one logit fixed: the product of shares
    prior = norm.logpdf(means, 0, 5).sum() + norm.logpdf(std) + dirichlet.logpdf(shares, jnp.full(3, 2.0)) + jacobian
    each = jnp.log(shares) + norm.logpdf(data["y"][:, None], means, std)
    return prior + jax.nn.logsumexp(each, axis=1).sum(), {"means": means, "shares": shares, "std": std[None]}


# Each with the places around which chains begin; those of a mixture may end in another of its modes
LAWS = {
    "eight_schools": (eight_schools, np.zeros(10)),
    "logistic": (logistic, np.zeros(15)),
    "mixture": (mixture, np.array([-1.5, 0.7, 0.7, 0.0, 0.0, -0.5])),
}


def reference(name: str, draws: int) -> dict[str, dict[str, list[float]]]:
    law, begin = LAWS[name]
    given = MODELS[name]().data
    data = {k: jnp.asarray(v.numpy()) for k, v in (given if isinstance(given, dict) else {"y": given}).items()}
    log_density = functools.partial(lambda u: law(u, data)[0])

    def chain(key):
        start, warm, go = jax.random.split(key, 3)
        adapt = blackjax.window_adaptation(blackjax.nuts, log_density, target_acceptance_rate=0.9)
        (state, settings), _ = adapt.run(warm, begin + 0.1 * jax.random.normal(start, begin.shape), WARM_UP)
        kernel = blackjax.nuts(log_density, **settings)

        def step(state, key):
            state, _ = kernel.step(key, state)
            return state, law(state.position, data)[1]

        return jax.lax.scan(step, state, jax.random.split(go, draws))[1]

    found = jax.lax.map(jax.jit(chain), jax.random.split(jax.random.key(0), CHAINS))  # (chains, draws, k) each

    def columns(x):
        errors = array_stats.mcse(x, chain_axis=0, draw_axis=1, method="mean")
        worst = array_stats.rhat(x, chain_axis=0, draw_axis=1).max()
        assert worst < 1.01, (name, worst)
        table = {"mean": x.mean((0, 1)), "sd": x.std((0, 1)), "mcse_mean": errors}
        return {k: np.round(v, 5).tolist() for k, v in table.items()}

    return {k: columns(np.asarray(x)) for k, x in found.items()}


if __name__ == "__main__":
    print(json.dumps({sys.argv[1]: reference(sys.argv[1], int(sys.argv[2]))}))
