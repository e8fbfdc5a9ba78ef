# %% [markdown]
# # Adaptive weighting on a rugged landscape
#
# A bowl full of holes, with the deepest in the middle. **Look at where the red points are**, which all begin at the
# cross: at T = 1 a chain is caught where it starts, at T = 8 it wanders everywhere, and with the weighting it crosses
# the holes at T = 8 and still stays at the bottom.

# %%
import matplotlib.pyplot as plt
import torch

import bdl


def energy(theta):
    """Rastrigin's function of points (..., 2), in nats: 0 at the origin, and 10 nats between two neighbouring holes."""
    return 5 * (1 - torch.cos(2 * torch.pi * theta)).sum(-1) + theta.square().sum(-1)


# %% [markdown]
# Psi is the distribution function of the energy, which the sampler learns on the way. The weighted chain has to know
# no more than the range of the energies.


# %%
def walk(temperature, weighting):
    """(n, 20, 2) states of 20 chains, and the log of their importance weights (n, 20)."""
    theta = torch.nn.Parameter(torch.tensor([4.0, -4.0]).repeat(20, 1))
    sampler = bdl.Sampler(
        [theta],
        bdl.SGLD(),
        num_data=1,
        lr=1e-3,
        temperature=temperature,
        prior=bdl.Uniform(),
        weighting=weighting,
        chains=20,
    )
    states, energies = [], []

    def closure():
        sampler.zero_grad()
        loss = energy(theta)
        loss.sum().backward()
        return loss.detach()

    for step in range(6000):
        sampler.step(closure)
        if step >= 3000 and step % 10 == 0:
            states.append(theta.detach().clone())
            energies.append(energy(states[-1]))
    return torch.stack(states), torch.stack([sampler.log_weight_at(u) for u in energies])  # by psi as it is at the end


weighting = bdl.AdaptiveWeight(zeta=1.0, low=0.0, high=60.0, bins=60, rate=bdl.RobbinsMonro(100.0))
runs = {
    "T = 1": walk(1.0, bdl.Flat()),
    "T = 8": walk(8.0, bdl.Flat()),
    "T = 8, adaptive weighting": walk(8.0, weighting),
}

# %%
across, up = torch.meshgrid(torch.linspace(-6, 6, 240), torch.linspace(-6, 6, 240), indexing="xy")
surface = energy(torch.stack([across, up], -1))
figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.8), layout="constrained")
for axis, (name, (states, _)) in zip(axes, runs.items(), strict=True):
    axis.contourf(across, up, surface, [0, 5, 10, 15, 20, 30, 40, 60, 100], cmap="Greys")
    axis.plot(*states[::2].flatten(0, 1).T, ".", ms=1.2, alpha=0.4, color="C3")
    axis.plot(4, -4, "kx", ms=9, mew=2)  # the start
    share = (energy(states) < 5).double().mean()
    axis.set(title=f"{name}\n{share:.0%} of the time below 5 nats", xlim=(-6, 6), ylim=(-6, 6), xticks=[], yticks=[])
plt.show()

# %% [markdown]
# The weighted samples are not those of exp(-U/T). Their importance weights lead back to it:

# %%
line = torch.linspace(-20, 20, 10_001)[:, None]  # the two coordinates are independent
one = energy(torch.cat([line, torch.zeros_like(line)], 1))
print(f"exact: mean energy {2 * ((-one / 8).softmax(0) * one).sum():.1f} nats")
for name in ("T = 8", "T = 8, adaptive weighting"):
    states, log_weights = runs[name]
    weights = log_weights.flatten().softmax(0)
    print(f"{name}: mean energy {(weights * energy(states).flatten()).sum():.1f} nats")
