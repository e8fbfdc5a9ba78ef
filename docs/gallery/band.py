# %% [markdown]
# # A band that widens where there are no data
#
# One network is as sure between the data as among them. A posterior over networks is not: **look at the middle**,
# where no point lies. There the band of the posterior opens, and that of one trained network does not.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

import bdl
from bdl.data import TensorBatches

torch.manual_seed(1)
x = torch.cat([-2.2 + torch.rand(30, 1), 1 + torch.rand(30, 1)])
y = (2.5 * x).sin() + 0.3 * x + 0.15 * torch.randn(60, 1)
grid = torch.linspace(-3, 3, 200)[:, None]
net = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))

# %% [markdown]
# `GaussianNLL(0.15)` says how noisy a measurement is. `T = 0` injects no noise, so that the first call trains one
# network as usual. The second samples eight chains at T = 1, the Bayesian posterior, by a sampler that uses all the
# data at every step.

# %%
loss, he = bdl.GaussianNLL(0.15), bdl.Gaussian("he")
last = bdl.schedules.EveryStep(burn_in=2499, every=1)
trained = bdl.sample(
    net,
    loss,
    TensorBatches(x, y, batch_size=60),
    "runs/trained",
    steps=2500,
    lr=1e-3,
    prior=he,
    dynamics=bdl.SGD(momentum=0.9),
    temperature=0.0,
    keep=last,
)
posterior = bdl.sample(
    net,
    loss,
    TensorBatches(x, y, batch_size=60, chains=8),
    "runs/posterior",
    steps=2500,
    lr=2e-4,
    prior=he,
    dynamics=bdl.MCLMC(adapt_steps=1200),
    chains=8,
)

# %%
figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.2), sharey=True, layout="constrained")
for axis, title, samples in zip(axes, ["One network", "Posterior"], [trained, posterior], strict=True):
    bdl.plot.band(samples.predict(grid), grid, axis, data=(x, y))
    axis.set(title=title, ylim=(-3, 3))
axes[0].legend(loc="lower right", ncols=2)
axes[1].get_legend().remove()
plt.show()

# %%
for place in (-1.5, 0.0):
    std = posterior.predict([[place]]).epistemic.item()
    print(f"at x = {place:4}: the networks differ by {std:.2f}")
