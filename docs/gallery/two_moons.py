# %% [markdown]
# # Two moons
#
# A classifier with two inputs, so that everything can be seen. The left map is the mean probability of class 1; the
# right one is the part of the uncertainty that more data would remove. **Look at the corners**: far from all points
# the network does not know, and says so.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

import bdl
from bdl.data import TensorBatches

torch.manual_seed(0)
angle, y = torch.pi * torch.rand(200), torch.randint(2, (200,))
x = torch.stack([angle.cos() + y, (1 - 2 * y) * angle.sin() + y / 2], 1) + 0.12 * torch.randn(200, 2)
x = x - x.mean(0)
net = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 2))

# %%
posterior = bdl.sample(
    net,
    bdl.CategoricalNLL(),
    TensorBatches(x, y, batch_size=200, chains=8),
    "runs/moons",
    steps=2500,
    lr=0.02,
    dynamics=bdl.MCLMC(adapt_steps=1200),
    chains=8,
)
print(posterior)

# %% [markdown]
# `predict` takes the points of a grid like any other inputs. It returns the mean probabilities and the two parts of
# their entropy, in nats: `aleatoric`, which is noise, and `epistemic`, about which the networks disagree.

# %%
across, up = torch.meshgrid(torch.linspace(-3, 3, 80), torch.linspace(-2.2, 2.2, 60), indexing="xy")
prediction = posterior.predict(torch.stack([across.flatten(), up.flatten()], 1))
maps = {"probability of class 1": prediction.probs[:, 1], "epistemic uncertainty (nats)": prediction.epistemic}

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.3), layout="constrained")
for axis, colours, (title, values) in zip(axes, ["RdBu_r", "viridis"], maps.items(), strict=True):
    drawn = axis.contourf(across, up, values.reshape(across.shape), 12, cmap=colours)
    figure.colorbar(drawn, ax=axis)
    axis.scatter(x[:, 0], x[:, 1], c=y, cmap="RdBu_r", edgecolors="white", linewidths=0.5, s=18)
    axis.set(title=title, xticks=[], yticks=[])
plt.show()
