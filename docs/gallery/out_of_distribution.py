# %% [markdown]
# # Out-of-distribution scores
#
# The network has never seen one of Landsat's six kinds of soil, the cotton crop. **Look where its rows stand** among
# all test rows, from the surest to the most doubtful. One network is as sure of them as of the others, or surer. The
# epistemic part of the posterior's uncertainty, about which its networks disagree, sets the unknown kind apart.

# %%
import matplotlib.pyplot as plt
import torch
from torchmetrics.functional.classification import binary_auroc

import bdl
from bdl.data import TensorBatches

landsat = bdl.data.LandsatDataModule()
x, y = landsat.tensors("train")
UNKNOWN = 1  # cotton crop
seen = y != UNKNOWN
classes = torch.tensor([0, -1, 1, 2, 3, 4])  # the five kinds that are left
batches = TensorBatches(x[seen], classes[y[seen]], batch_size=100, chains=8)

# %%
net = bdl.models.MLP([36, 50, 5])
posterior = bdl.sample(
    net,
    bdl.CategoricalNLL(),
    batches,
    "runs/five",
    steps=8000,
    lr=0.1,
    dynamics=bdl.SGNHT(),
    chains=8,
    full_energy=False,
)

# %% [markdown]
# Two scores for each test row: the entropy of the mean prediction, and its epistemic part, which is the mutual
# information between the class and the network. `one` holds the entropy by a single network of the posterior.

# %%
x, y = landsat.tensors("test")
prediction = posterior.predict(x)
unknown = (y == UNKNOWN).long()
one = posterior.as_module(samples=1)(x)
scores = {
    "one network: entropy": torch.special.entr(one).sum(1),
    "posterior: entropy": prediction.entropy,
    "posterior: epistemic part": prediction.epistemic,
}

# %%
figure, axes = plt.subplots(1, 2, figsize=(5.6, 3.2), layout="constrained", sharey=True)
figure.suptitle("Soil that no network has seen: one network\ndoes not notice, the posterior doubts", weight="bold")
for name, score in scores.items():
    print(f"{name}: AUROC {binary_auroc(score, unknown).item():.3f}")  # 0.5 is chance
for axis, name in zip(axes, ("one network: entropy", "posterior: epistemic part"), strict=True):
    rank = scores[name].argsort().argsort() / len(x)  # 0 is the surest row, 1 the most doubtful
    axis.hist(rank[unknown == 1].tolist(), 20, range=(0, 1), density=True, color="#d55e00", alpha=0.8)
    axis.axhline(1, color="black", ls=":", lw=1)
    axis.set(title=name, xlabel="surest row → most doubtful", xticks=[], yticks=[])
axes[1].text(0.02, 1.06, "chance")
axes[0].set_ylabel("rows of the unseen soil")
plt.show()
