# %% [markdown]
# # Kill a run, and go on
#
# A cluster ends a job by a signal. The run writes a checkpoint, and the same call goes on from there. **Look at the
# red line**: the run was killed there, and goes on exactly on the line of a run that nobody stopped.

# %%
import os
import signal
from typing import Any

import matplotlib.pyplot as plt
import torch

import bdl
from bdl.data import TensorBatches
from bdl.errors import Stopped

landsat = bdl.data.LandsatDataModule()
x, y = landsat.tensors("train")


class Cluster(bdl.callbacks.StepCallback):
    """Ends the job after 700 steps, as SLURM does."""

    def must_see(self, step):
        return step == 700

    def on_train_batch_end(self, trainer, pl_module: Any, outputs, batch, batch_idx):
        if self.must_see(pl_module.sampler.steps):
            os.kill(os.getpid(), signal.SIGTERM)


def run(folder, *callbacks):
    torch.manual_seed(0)
    return bdl.sample(
        bdl.models.MLP([36, 30, 6]),
        bdl.CategoricalNLL(),
        TensorBatches(x, y, batch_size=100, chains=4),
        folder,
        steps=1500,
        lr=0.1,
        chains=4,
        keep=bdl.schedules.EveryStep(burn_in=0, every=10),
        callbacks=callbacks,
    )


# %%
try:
    run("runs/killed", Cluster())
except Stopped as stopped:
    print(stopped)
continued = run("runs/killed")
whole = run("runs/whole")

# %% [markdown]
# `bdl train` does the same: the command finds its run when it is repeated, and SLURM can repeat it by itself.

# %%
figure, axis = plt.subplots(figsize=(8, 3.4), layout="constrained")
for name, posterior, style in [("never stopped", whole, "C0-"), ("killed and continued", continued, "k:")]:
    steps = [record.step for record in posterior.records]
    energy = posterior.recorded("energy_batch").mean(0)  # of four chains, in nats
    axis.plot(steps, energy, style, lw=4 if style == "C0-" else 1.5, label=name)
axis.axvline(700, color="C3", ls="--", label="killed")
axis.set(xlabel="step", ylabel="energy U (nats)", ylim=(800, 2500))
axis.legend()
plt.show()

# %%
pairs = zip(whole.stream(), continued.stream(), strict=True)
print(
    "all samples equal, bit for bit:", all(torch.equal(a.tensors[k], b.tensors[k]) for a, b in pairs for k in a.tensors)
)
