# %% [markdown]
# # Calibration and conformal sets
#
# Can the probabilities be believed? **Look at the diagonals**: on the left the posterior keeps to it, and one network
# is too sure. On the right sets of classes hold the true class as often as they promise, up to chance.

# %%
import matplotlib.pyplot as plt
import torch

import bdl
from bdl.data import TensorBatches

landsat = bdl.data.LandsatDataModule()
x, y = landsat.tensors("train")
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
train, validation = ((x[rows], y[rows]) for rows in (order[:1000], order[1000:2000]))
net = bdl.models.MLP([36, 50, 6])
posterior = bdl.sample(
    net,
    bdl.CategoricalNLL(),
    TensorBatches(*train, batch_size=100, chains=8),
    "runs/landsat",
    steps=6000,
    lr=0.1,
    dynamics=bdl.SGNHT(),
    chains=8,
)

# %% [markdown]
# The conformal sets are fitted on rows that were not trained on, one threshold for each level, and judged on the test
# rows. They hold their promise even where the posterior is wrong.

# %%
x, y = landsat.tensors("test")
prediction, held_out = posterior.predict(x), posterior.predict(validation[0])
levels = [0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98]
coverage, size = [], []
for level in levels:
    sets = bdl.ConformalSets.fit(held_out, validation[1], level=level)(prediction)  # (n, 6), True for members
    coverage.append(sets[torch.arange(len(y)), y].double().mean().item())
    size.append(sets.sum(1).double().mean().item())

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
one = posterior.as_module(samples=1)(x)
bdl.plot.reliability(one, y, axes[0], label="one network", color="C1", marker="s")
bdl.plot.reliability(prediction, y, axes[0], label="posterior")
axes[1].plot([0.45, 1], [0.45, 1], ":", color="#777777", label="promised")
axes[1].plot(levels, coverage, "o-", label="test rows whose set holds the true class")
axes[1].set(xlabel="level that is promised", ylabel="coverage")
axes[1].legend(loc="lower right")
plt.show()

# %%
scaling = bdl.TemperatureScaling.fit(held_out, validation[1])
print(f"temperature scaling would divide the logits by {scaling.temperature:.2f}")
for level, covered, classes in zip(levels[-3:], coverage[-3:], size[-3:], strict=True):
    print(f"level {level}: {covered:.3f} covered, {classes:.2f} classes in a set on average")
