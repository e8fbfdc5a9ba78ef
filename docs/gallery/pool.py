# %% [markdown]
# # Which label next
#
# Labels cost, and most rows of this pool say the same: three quarters lie in one cloud. A classifier begins with six
# labels and asks for five more at a time, of the rows about which its networks disagree most. **Look at the points with
# a black edge**: none lies in the cloud. The right picture compares the error on the moons with that of rows drawn at
# random.

# %%
import warnings

import matplotlib.pyplot as plt
import numpy as np

from bdl.contrib.decisions.acquisition import bald, epistemic_variance
from bdl.sklearn import BayesianMLPClassifier

warnings.simplefilter("ignore")  # short chains on a few rows: the verdict is about the posterior, not about the choice


def moons(n, random):
    """(n, 2) points in two half moons, and their classes (n,)."""
    angle, y = np.pi * random.random(n), random.integers(2, size=n)
    x = np.stack([np.cos(angle) + y, (1 - 2 * y) * np.sin(angle) + y / 2], 1)
    return x + 0.08 * random.normal(size=(n, 2)), y


random = np.random.default_rng(0)
moon, label = moons(75, random)
pool = np.concatenate([moon, [0.0, 1.0] + 0.1 * random.normal(size=(225, 2))])
labels = np.concatenate([label, np.zeros(225, dtype=int)])
test, truth = moons(2000, np.random.default_rng(1))


# %% [markdown]
# `bald` and `epistemic_variance` take a fitted estimator, rows, and how many to choose, as the query strategies of
# [modAL](https://modal-python.readthedocs.io) do. `bald` ranks by the mutual information between the label and the
# network, `epistemic_variance` by the variance of the probabilities.


# %%
def at_random(estimator, rows, n):
    return np.random.default_rng(len(rows)).permutation(len(rows))[:n]


def learn(choose, rounds=4, batch=5):
    """The rows in the order in which they were asked for, and the error after each round."""
    known = [*np.flatnonzero(labels == 0)[:3], *np.flatnonzero(labels == 1)[:3]]
    errors = []
    for _ in range(rounds + 1):
        estimator = BayesianMLPClassifier(
            20, start=None, chains=4, samples=25, steps=400, prior_std=2.0, temperature=0.1, random_state=0
        ).fit(pool[known], labels[known])
        errors.append(np.mean(estimator.predict(test) != truth))
        left = np.setdiff1d(np.arange(len(pool)), known)
        known += left[choose(estimator, pool[left], batch)].tolist()
    return known, errors


found = {choose.__name__: learn(choose) for choose in (bald, epistemic_variance, at_random)}
for name, (_, errors) in found.items():
    print(f"{name:20} {errors[0]:.3f} with 6 labels, {errors[-1]:.3f} with 26")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.3), layout="constrained")
asked = found["bald"][0]
left.scatter(*pool.T, c=labels, cmap="RdBu_r", s=10, alpha=0.35)
left.scatter(*pool[asked[6:26]].T, c=labels[asked[6:26]], cmap="RdBu_r", s=45, edgecolors="black", vmin=0, vmax=1)
left.set(title="the rows that bald asked for", xticks=[], yticks=[])
for (name, (_, errors)), style in zip(found.items(), ["o-", "s-", "^--"], strict=True):
    right.plot(6 + 5 * np.arange(len(errors)), errors, style, ms=4, label=name)
right.set(xlabel="labels", ylabel="error on the moons")
right.legend(frameon=False)
plt.show()
