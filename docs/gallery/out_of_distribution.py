# %% [markdown]
# # Out-of-distribution scores
#
# The network has never seen one of Landsat's six kinds of soil, the cotton crop. **Look at the orange rows**: one
# network is surest where it knows nothing, so that AUROC is below 0.5, which is chance. The epistemic part of the
# posterior's uncertainty, about which the networks disagree, sets the unknown kind apart.

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
    net, bdl.CategoricalNLL(), batches, "runs/five", steps=8000, lr=0.1, dynamics=bdl.SGNHT(), chains=8
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
figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
for axis, (name, score) in zip(axes, scores.items(), strict=True):
    auroc = binary_auroc(score, unknown).item()
    print(f"{name}: AUROC {auroc:.3f}")
    bins = torch.linspace(0, score.max().item(), 30).tolist()
    axis.hist(score[unknown == 0], bins, density=True, alpha=0.7, label="known kinds")
    axis.hist(score[unknown == 1], bins, density=True, alpha=0.7, label="unknown kind")
    axis.set(title=f"{name}\nAUROC {auroc:.3f}", xlabel="score (nats)", yticks=[])
axes[0].legend()
plt.show()
