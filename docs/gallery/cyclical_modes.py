# %% [markdown]
# # Cyclical steps find more modes
#
# A target distribution with 25 modes. **Count the spots that each chain has found**: with a falling step a chain
# stays where it began; with cyclical steps each cycle jumps out with large steps and settles with small ones.

# %%
import matplotlib.pyplot as plt
import torch

import bdl

places = torch.cartesian_prod(*2 * [torch.linspace(-4, 4, 5)])  # (25, 2)


def energy(theta):
    """-log of 25 equal normal distributions of variance 0.03, for points (..., 2), in nats."""
    return -torch.logsumexp(-(theta[..., None, :] - places).square().sum(-1) / 0.06, -1)


# %% [markdown]
# Four chains are four rows of one tensor. `num_data=1` and a flat prior make U the energy itself. A schedule is a
# function of the step; the cycle says when noise is injected and which states are samples.

# %%
STEPS = 6000
cycle = bdl.schedules.Cycle(STEPS, cycles=24, explore=0.5)


def walk(lr, temperature, keep):
    """(kept, 4, 2) samples of four chains."""
    theta = torch.nn.Parameter(torch.tensor([[-3.0, -3.0], [3.0, -3.0], [-3.0, 3.0], [3.0, 3.0]]))
    sampler = bdl.Sampler([theta], bdl.SGLD(), num_data=1, lr=0.1, prior=bdl.Uniform(), chains=4)
    kept = []

    def closure():
        sampler.zero_grad()
        loss = energy(theta)
        loss.sum().backward()
        return loss.detach()

    for step in range(STEPS):
        sampler.param_groups[0].update(lr=lr(step), temperature=temperature(step))
        sampler.step(closure)
        if keep(step):
            kept.append(theta.detach().clone())
    return torch.stack(kept)


runs = {
    "falling step": walk(bdl.schedules.Polynomial(0.05), bdl.schedules.Constant(1.0), lambda step: step >= 1000),
    "cyclical step": walk(
        bdl.schedules.CyclicalCosine(0.07, cycle, floor=1e-3), bdl.schedules.Constant(1.0), cycle.sampling
    ),
}

# %%
across, up = torch.meshgrid(torch.linspace(-5, 5, 150), torch.linspace(-5, 5, 150), indexing="xy")
density = (-energy(torch.stack([across, up], -1))).exp()
figure, axes = plt.subplots(1, 2, figsize=(8, 4), layout="constrained")
for axis, (name, samples) in zip(axes, runs.items(), strict=True):
    axis.contour(across, up, density, 3, colors="#bbbbbb", linewidths=0.7)
    for chain in range(4):
        axis.plot(*samples[::3, chain].T, ".", ms=2)
    nearest = torch.cdist(samples.flatten(0, 1), places).argmin(1)
    found = (nearest.bincount(minlength=25) > 0.004 * len(nearest)).sum()  # a tenth of a mode's share
    axis.set(title=f"{name}: {found} of 25 modes", xlim=(-5, 5), ylim=(-5, 5), xticks=[], yticks=[], aspect="equal")
    print(f"{name}: {found} of 25 modes hold a tenth of their share or more")
plt.show()
