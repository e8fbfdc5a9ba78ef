# %% [markdown]
# # Your own CSV file
#
# From a table to intervals in euros. The widest belong to flats whose area is missing. Each blue line should hold the
# rent of one flat that was kept back; **look at the red points**: these rents lie outside, and about one in ten
# should.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import bdl

random = np.random.default_rng(0)
flats = pd.DataFrame({"area": random.uniform(20, 120, 400), "year": random.integers(1900, 2025, 400)})
flats["district"] = random.choice(["centre", "hills"], 400)
mean = 150 + 11 * flats["area"] + 250 * (flats["district"] == "centre")
flats["rent"] = (mean + (20 + flats["area"]) * random.normal(size=400)).round()  # large flats differ more
flats.loc[random.random(400) < 0.1, "area"] = np.nan
flats.to_csv("flats.csv", index=False)

# %% [markdown]
# `read_table` encodes the text, fills the gaps and says where they were, standardises, and keeps a fifth of the rows
# back. The network predicts a mean and a scale for every flat. On the command line, `bdl train data=csv
# data.path=flats.csv data.target=rent` does all that stands here, and tunes as well. `test=` makes the report, and
# the verdict below.

# %%
data = bdl.data.read_table("flats.csv", target="rent", batch_size=None, chains=8)
loss = bdl.HeteroscedasticNLL()
net = bdl.models.MLP([*data.input_shape, 16, 16, loss.num_outputs(1)])
posterior = bdl.sample(
    net,
    loss,
    data.train_dataloader(),
    "runs/flats",
    steps=3000,
    lr=0.01,
    dynamics=bdl.MCLMC(adapt_steps=1200),
    chains=8,
    test=data.test_dataloader(),
)

# %%
x, y = data.tensors("test")
assert data.target_units  # a regression has them
((_, mean, std),) = data.target_units  # of the rents that were trained on, in euros
prediction = posterior.predict(x).rescaled(mean, std)
rent = mean + std * y

# %%
axis = bdl.plot.intervals(prediction, rent, level=0.9, name="rent (euros)")
plt.show()

# %%
low, high = prediction.interval(0.9)
print(f"{((rent >= low) & (rent <= high)).double().mean():.0%} of the {len(rent)} rents lie inside their 90 % interval")
print(prediction[:3].to_frame().round())
