# %% [markdown]
# # Your own LightningModule
#
# A module that trains with `torch.optim.SGD` becomes a sampler by one line of `configure_optimizers`. **Look at the
# right end of the curves**: the average over many networks has a lower loss than any average of few, and points on
# the diagonal say that its probabilities can be believed.

# %%
import lightning as L
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bdl

landsat = bdl.data.LandsatDataModule()  # 36 numbers of a satellite, 6 kinds of soil
train = DataLoader(TensorDataset(*landsat.tensors("train")), batch_size=100, shuffle=True)
test = DataLoader(TensorDataset(*landsat.tensors("test")), batch_size=500)


# %%
class Classifier(L.LightningModule):
    def __init__(self, num_data):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(36, 50), nn.Tanh(), nn.Linear(50, 6))
        self.num_data = num_data

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        # return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return bdl.Sampler(self.named_parameters(), bdl.SGHMC(friction=0.1), num_data=self.num_data, lr=0.1)


# %% [markdown]
# The Trainer is an ordinary one. `CollectSamples` writes the networks that the keep-rule chooses.

# %%
torch.manual_seed(0)
classifier = Classifier(landsat.num_data)
trainer = L.Trainer(
    max_steps=4000,
    max_epochs=-1,
    accelerator="cpu",
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    default_root_dir="runs/classifier",
    callbacks=[bdl.CollectSamples(bdl.schedules.EveryStep(burn_in=2000, every=20))],
)
trainer.fit(classifier, train)

# %%
posterior = bdl.Posterior.load("runs/classifier", classifier, likelihood=bdl.CategoricalNLL())
evaluation = posterior.evaluate(test)

# %%
x, y = landsat.tensors("test")
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
bdl.plot.learning_curve(evaluation, axes[0])
bdl.plot.reliability(posterior.predict(x), y, axes[1])
plt.show()

# %%
metrics = evaluation.metrics()
for kind in ("one_sample", "bma"):
    print(f"{kind}: accuracy {metrics[f'{kind}/accuracy']:.3f}, NLL {metrics[f'{kind}/nll']:.3f} nats")
