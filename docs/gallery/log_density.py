# %% [markdown]
# # Any log density, and what batches do to it
#
# A posterior need not be that of a network. `bdl.sample_density` takes two functions of named parameters. **Look left**
# at eight schools whose effects shrink towards each other, and **right** at the price of small batches: the histogram
# is wider than the posterior, by the root of the T_eff that bdl reports.

# %%
import matplotlib.pyplot as plt
import torch
from torch.distributions import AffineTransform, HalfCauchy, Normal, constraints

import bdl

effect = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])  # of coaching, in points (Rubin 1981)
error = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

# %% [markdown]
# The effect of school j is `mu + tau * eta[j]`. `log_likelihood` returns a number for each row that it is given. `tau`
# is positive: torch's transform and its Jacobian are added. `mu` has a scale, so that one step size suits all.


# %%
def log_prior(p):
    of_schools = Normal(0.0, 1.0).log_prob(p["eta"]).sum()
    return Normal(0.0, 5.0).log_prob(p["mu"]) + HalfCauchy(5.0).log_prob(p["tau"]) + of_schools


def log_likelihood(p, rows):
    return Normal(p["mu"] + p["tau"] * p["eta"][rows["school"]], rows["error"]).log_prob(rows["effect"])


schools = bdl.sample_density(
    log_prior,
    log_likelihood,
    init={"mu": 0.0, "tau": 1.0, "eta": torch.zeros(8)},
    data={"school": torch.arange(8), "effect": effect, "error": error},
    batch_size=None,
    run_dir="runs/schools",
    constraints={"tau": constraints.positive, "mu": AffineTransform(0.0, 3.0)},
    dims={"eta": ["school"]},
    coords={"school": list("ABCDEFGH")},
    chains=64,
    steps=1600,
    lr=0.1,
)
print(schools.summary().round(2))

# %% [markdown]
# A mean of 1,000 numbers, by batches of 50. Its posterior is known.

# %%
y = 2.0 + 1.5 * torch.randn(1000, generator=torch.Generator().manual_seed(0))
mean = bdl.sample_density(
    lambda p: Normal(0.0, 10.0).log_prob(p["centre"]),
    lambda p, y: Normal(p["centre"], 1.5).log_prob(y),
    init={"centre": 2.0},
    data=y,
    batch_size=50,
    run_dir="runs/mean",
    chains=32,
    steps=800,
    lr=0.1,
    dynamics=bdl.BAOAB(friction=0.3),
)
heat = mean.metrics["t_eff"]
print(f"T_eff {heat:.2f}: {mean.verdict.outcome}")

# %%
figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
draws = schools.draws()
theta = draws["mu"][..., None] + draws["tau"][..., None] * draws["eta"]
theta = theta.reshape(-1, 8)
places = torch.arange(8).numpy()
axes[0].errorbar(places - 0.12, effect, error, fmt="o", color="0.6", label="measured, ± 1 standard error")
axes[0].errorbar(places + 0.12, theta.mean(0), theta.std(0), fmt="o", color="C0", label="posterior, ± 1 std")
axes[0].set(
    title="Eight schools", ylabel="effect (points)", xticks=places, xticklabels=list("ABCDEFGH"), ylim=(-25, 62)
)
axes[0].legend(loc="upper right", fontsize=8)
exact = Normal(y.mean(), 1.5 / len(y) ** 0.5)
wide = Normal(exact.loc, exact.scale * heat**0.5)
grid = torch.linspace(exact.loc - 5 * exact.scale, exact.loc + 5 * exact.scale, 200)
axes[1].hist(mean.draws()["centre"].ravel(), 40, density=True, color="C0", alpha=0.35, label="draws, batches of 50")
axes[1].plot(grid, exact.log_prob(grid).exp(), color="0.4", label="posterior")
axes[1].plot(grid, wide.log_prob(grid).exp(), color="C3", label=f"posterior at T_eff {heat:.2f}")
axes[1].set(title="A mean of 1,000 numbers", xlabel="centre", yticks=[], ylim=(0, 12))
axes[1].legend(loc="upper right", fontsize=8)
plt.show()
