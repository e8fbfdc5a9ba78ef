# %% [markdown]
# # Segmentation with a map of uncertainty
#
# Every pixel gets a class and an uncertainty. **Look along a row**: the map lights up at edges, where the classes
# meet, and where a shape fades into the noise.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bdl

torch.manual_seed(0)


def scenes(n):
    """(n, 1, 24, 24) pictures of a disc and a square of any contrast, and the class of each pixel (n, 24, 24)."""
    up, across = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    labels = torch.zeros(n, 24, 24, dtype=torch.long)
    picture = torch.zeros(n, 24, 24)
    for which in (1, 2):
        centre, size = 4 + 16 * torch.rand(2, n, 1, 1), 3 + 3 * torch.rand(n, 1, 1)
        v, h = up - centre[0], across - centre[1]
        inside = (v.hypot(h) if which == 1 else torch.maximum(v.abs(), h.abs())) < size
        labels[inside] = which
        contrast = 0.3 + 1.2 * torch.rand(n, 1, 1)
        picture = torch.where(inside, contrast * (1 if which == 1 else -1), picture)
    return (picture + 0.3 * torch.randn(n, 24, 24))[:, None], labels


# %% [markdown]
# The network puts out three logits for every pixel, (n, 3, 24, 24), which `class_axis=-3` says. Each pixel counts as
# an observation: `num_data` is the number of pixels.


# %%
def layer(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 5, padding=2), nn.ReLU())


net = nn.Sequential(layer(1, 8), layer(8, 8), nn.Conv2d(8, 3, 5, padding=2))
x, y = scenes(100)
train = DataLoader(TensorDataset(x, y), batch_size=10, shuffle=True)
posterior = bdl.sample(
    net,
    bdl.CategoricalNLL(class_axis=-3),
    train,
    "runs/scenes",
    steps=400,
    lr=0.02,
    chains=4,
    num_data=y.numel(),
    accelerator="cpu",
)

# %%
x, y = scenes(20)
prediction = posterior.predict(x)
print(f"{(prediction.probs.argmax(-1) == y).double().mean():.1%} of the pixels are right")

# %%
figure, axes = plt.subplots(3, 4, figsize=(8, 6), layout="constrained")
for row, item in zip(axes, (1, 4, 6), strict=True):
    shown = [x[item, 0], y[item], prediction.probs[item].argmax(-1), prediction.entropy[item]]
    for axis, picture, colours in zip(row, shown, ["gray", "viridis", "viridis", "magma"], strict=True):
        axis.imshow(picture, cmap=colours)
        axis.set(xticks=[], yticks=[])
for axis, title in zip(axes[0], ["picture", "truth", "predicted", "uncertainty"], strict=True):
    axis.set_title(title)
plt.show()
