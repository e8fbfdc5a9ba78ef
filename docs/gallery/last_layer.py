# %% [markdown]
# # The last layer of a ResNet18
#
# A ResNet18 has learnt four shapes. Its last layer is replaced and sampled on 40 pictures of three new shapes; the
# rest stays frozen. **Compare the rows**: a green title is right and a red one wrong. The errors are among the
# pictures that the network is least sure of.

# %%
import matplotlib.pyplot as plt
import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bdl

SHAPES = ["disc", "square", "bar", "frame", "ring", "cross", "corner"]


def draw(classes, seed):
    """(n, 3, 24, 24) pictures of these shapes, of any size and place, in noise of any strength."""
    random = torch.Generator().manual_seed(seed)
    n = len(classes)
    up, across = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    centre = 9 + 6 * torch.rand(2, n, 1, 1, generator=random)
    size = 5 + 3 * torch.rand(n, 1, 1, generator=random)
    v, h = (up - centre[0]) / size, (across - centre[1]) / size
    far, wide = v.hypot(h), torch.maximum(v.abs(), h.abs())
    cross = torch.minimum(v.abs(), h.abs()) < 0.25
    shapes = [
        far < 1,
        wide < 0.9,
        (wide < 1) & (h.abs() < 0.3),
        (wide < 0.95) & (wide > 0.6),
        (far < 1) & (far > 0.6),
        (wide < 1) & cross,
        (wide < 1) & ((v > 0.5) | (h < -0.5)),
    ]
    clean = torch.stack(shapes)[classes, torch.arange(n)].float()
    noisy = clean + 0.6 * torch.rand(n, 1, 1, generator=random) * torch.randn(n, 24, 24, generator=random)
    return noisy[:, None].expand(-1, 3, -1, -1).contiguous()


# %% [markdown]
# First a "pretrained" network: torchvision's ResNet18, trained for a few seconds on the first four shapes. With
# weights of your own, `bdl.CheckpointStart(path, skip=["fc.*"])` reads the file.

# %%
torch.manual_seed(0)
net = torchvision.models.resnet18(num_classes=4)
known = torch.randint(4, (320,))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for epoch in range(4):
    for x, y in DataLoader(TensorDataset(draw(known, seed=epoch), known), batch_size=32):
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
net.eval()
with torch.no_grad():
    error = (net(draw(known, seed=9)).argmax(1) != known).double().mean()
print(f"error on new pictures of the four known shapes: {error:.0%}")

# %% [markdown]
# `only="fc.*"` samples the last layer. A sample holds its 1,539 numbers; the frozen part is written once.

# %%
net.fc = nn.Linear(512, 3)
new = torch.randint(4, 7, (40,))
train = DataLoader(TensorDataset(draw(new, seed=10), new - 4), batch_size=40)
posterior = bdl.sample(
    net, nn.CrossEntropyLoss(), train, "runs/head", steps=60, lr=0.05, chains=4, only="fc.*", accelerator="cpu"
)

# %%
test = torch.randint(4, 7, (100,))
pictures = draw(test, seed=11)
prediction = posterior.predict(pictures)
order = prediction.entropy.argsort()

# %%
figure, axes = plt.subplots(2, 6, figsize=(8, 3.4), layout="constrained")
for axis, item in zip(axes.flat, [*order[:6].tolist(), *order[-6:].tolist()], strict=True):
    axis.imshow(pictures[item, 0], cmap="gray", vmin=-1, vmax=2)
    probability, choice = prediction.probs[item].max(0)
    right = choice == test[item] - 4
    axis.set_title(f"{SHAPES[4 + choice]} {probability:.0%}", color="C2" if right else "C3", fontsize=10)
    axis.set(xticks=[], yticks=[])
for axis, name in zip(axes[:, 0], ["surest", "least sure"], strict=True):
    axis.set_ylabel(name)
plt.show()

# %%
right = prediction.probs.argmax(1) == test - 4
surer, other = right[order[:50]].float().mean(), right[order[50:]].float().mean()
print(f"right: {surer:.0%} of the surer half, {other:.0%} of the other")
