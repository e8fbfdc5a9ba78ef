"""What influence finds: python scripts/experiment.py influence [OUT].

Two questions with known answers. Mislabelled images: of scikit-learn's digits, 8 % of the training labels are changed,
and the rows are ranked by how much they harm clean images; beside the gradient dot products and the self-influence of
one network. Leaving out: a table of 200 rows, of which each in turn is left out and the posterior sampled anew, of a
logistic regression.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from tools.results import RESULTS, ROOT, about, save
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import bdl
from bdl.data import TensorBatches, TensorSlices

CHANGED, TRAINED, CLEAN = 0.08, 500, 300  # share of labels, training images, clean images
SEEDS = (0, 1, 2)
N, HELD, INPUTS, CHAINS = 200, 50, 8, 8  # rows of the table, other rows, chains for each row that is left out
STEPS, EVERY, BURN_IN, LR = 6000, 5, 500, 0.5  # of the chains that leave out a row
DIGITS, LEFT_OUT = (ROOT / "docs" / "pictures" / f"influence-{name}.png" for name in ("digits", "left-out"))


def digits(seed: int) -> dict[str, Any]:
    """AUROC of each score for the changed labels, and the images that harm most."""
    images, labels = (torch.from_numpy(a) for a in load_digits(return_X_y=True))
    random = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=random)[: TRAINED + CLEAN]
    x, y = (images[order] / 16).float(), labels[order].clone()
    changed = torch.zeros(TRAINED, dtype=torch.bool)
    changed[torch.randperm(TRAINED, generator=random)[: round(CHANGED * TRAINED)]] = True
    others = torch.randint(1, 10, (TRAINED,), generator=random)
    y[:TRAINED][changed] = (y[:TRAINED][changed] + others[changed]) % 10
    train, clean = (x[:TRAINED], y[:TRAINED]), (x[TRAINED:], y[TRAINED:])
    net = nn.Sequential(nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10))
    with tempfile.TemporaryDirectory() as folder:
        posterior = bdl.sample(
            net, bdl.CategoricalNLL(), TensorBatches(*train, TRAINED, chains=8, seed=seed), Path(folder) / "run",
            steps=2500, lr=0.02, dynamics=bdl.MCLMC(adapt_steps=1000), chains=8, seed=seed,
        )  # fmt: skip
        of_clean = posterior.influence(TensorSlices(*train), TensorSlices(*clean)).values.mean(0)
        own = posterior.influence(TensorSlices(*train), TensorSlices(*train)).values.diag()
        wrong = posterior.predict(clean[0]).probs.argmax(1) != clean[1]
    dot, squared = gradient_scores(trained(net, *train, seed), train, clean)
    chance = torch.rand(TRAINED, generator=random)
    scores = {"chance": chance, "influence": -of_clean, "own": own, "gradients": -dot, "gradient_own": squared}
    harmful = of_clean.argsort()[:12]
    return {
        "seed": seed, "error": float(wrong.double().mean()), "changed": int(changed.sum()),
        **{name: float(roc_auc_score(changed, score)) for name, score in scores.items()},
        "harmful": [
            {"image": (16 * train[0][i]).int().tolist(), "label": int(train[1][i]), "true": int(labels[order[i]])}
            for i in harmful.tolist()
        ],
    }  # fmt: skip


def trained(net: nn.Module, x: Tensor, y: Tensor, seed: int) -> dict[str, Tensor]:
    """One network, by AdamW on all rows."""
    torch.manual_seed(seed)
    for layer in net.children():
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.01)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return {name: p.detach() for name, p in net.named_parameters()}


def gradient_scores(
    weights: dict[str, Tensor], train: tuple[Tensor, Tensor], clean: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """(n,) products of the gradients of the training rows with the mean one of the clean rows, and with themselves."""
    net = nn.Sequential(nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10))

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(net, weights, (x[None],)), y[None])

    each = vmap(grad(loss), (None, 0, 0))
    of_train, of_clean = (
        torch.cat([g.flatten(1) for g in each(weights, *rows).values()], 1) for rows in (train, clean)
    )
    return of_train @ of_clean.mean(0), of_train.square().sum(1)


def table() -> tuple[Tensor, Tensor]:
    """N + HELD rows of INPUTS numbers in two classes; a tenth of the first have the other label."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(N + HELD, INPUTS, generator=random)
    y = (x[:, :3].sum(1) + torch.randn(N + HELD, generator=random) > 0).long()
    y[:N:10] = 1 - y[:N:10]
    return x, y


def left_out() -> dict[str, Any]:
    """The change of the summed loss of the HELD rows where a row is left out, against the influence on them."""
    (x, y), loss = table(), bdl.CategoricalNLL()
    counts = torch.cat([1 - torch.eye(N), torch.ones(1, N)]).repeat_interleave(CHAINS, 0)  # the last ones have all rows
    stack = bdl.ChainStack(nn.Linear(INPUTS, 2), len(counts), seed=0)
    sampler = bdl.Sampler(
        stack.parameters(), bdl.BAOAB(0.1), num_data=N, lr=LR, chains=len(counts), prior=bdl.Gaussian(1.0), seed=0
    )
    inputs, targets = x.expand(len(counts), -1, -1), y.expand(len(counts), -1)
    sums: list[Tensor] = []  # (posterior, chain) summed loss of the HELD rows
    full: list[Tensor] = []  # (chain, N + HELD) losses under the posterior of all rows

    def closure() -> Tensor:
        sampler.zero_grad()
        losses = (loss(stack(inputs[:, :N]), targets[:, :N]) * counts).mean(1)
        losses.sum().backward()
        return losses

    for step in range(STEPS):
        sampler.step(closure)
        if step >= BURN_IN and step % EVERY == 0:
            with torch.no_grad():
                each = loss(stack(inputs), targets).double().unflatten(0, (N + 1, CHAINS))
            sums.append(each[..., N:].sum(-1))
            full.append(each[N].clone())
    held, of_all = torch.stack(sums).mean(0), torch.stack(full)
    of_all = of_all - of_all.mean(0)
    found = (of_all[..., N:].sum(-1, keepdim=True) * of_all[..., :N]).mean(0)  # (chain, row)
    change, error = held[:N].mean(1) - held[N].mean(), held[:N].std(1) / CHAINS**0.5
    return {
        "change": change.tolist(), "change_error": error.tolist(), "influence": found.mean(0).tolist(),
        "influence_error": (found.std(0) / CHAINS**0.5).tolist(),
    }  # fmt: skip


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """The twelve training images that harm clean ones most; red: the label was changed."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 6, figsize=(7, 3.0), layout="constrained")
    for axis, row in zip(axes.flat, rows, strict=True):
        axis.imshow(np.array(row["image"]).reshape(8, 8), cmap="gray_r")
        wrong = row["label"] != row["true"]
        axis.set_title(f"label {row['label']}", color="#b3261e" if wrong else "#333333", fontsize=10)
        axis.set_axis_off()
    figure.savefig(path, dpi=110)


def scatter(found: dict[str, Any], path: Path) -> None:
    """What leaving out a row did, against what the influence said."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5.2, 4.2), layout="constrained")
    x, y = found["influence"], found["change"]
    axis.errorbar(
        x, y, found["change_error"], found["influence_error"], fmt="o", ms=4, color="#1f6fb4", alpha=0.6, lw=0.8
    )
    ends = [min(x), max(x)]
    axis.plot(ends, ends, color="#555555", lw=1)
    axis.set(xlabel="influence, nats", ylabel="change where the row was left out, nats")
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def main(out: Path = RESULTS / "influence") -> None:
    began = time.process_time()
    found = [digits(seed) for seed in SEEDS]
    harmful = [row.pop("harmful") for row in found]
    print(*found, sep="\n", flush=True)
    picture(harmful[0], DIGITS)
    wrong = sum(image["label"] != image["true"] for image in harmful[0])
    save(out / "digits.json", {**about(), "core_seconds": time.process_time() - began, "harmful": wrong, "rows": found})
    began, rows = time.process_time(), left_out()
    change, said = np.array(rows["change"]), np.array(rows["influence"])
    scatter(rows, LEFT_OUT)
    slope = float(said @ change / (said @ said))
    numbers = {
        "correlation": float(np.corrcoef(change, said)[0, 1]),
        "slope": slope,
        "chance": float(np.corrcoef(np.roll(change, 1), said)[0, 1]),
        "change_error": float(np.mean(rows["change_error"])),
        "change_std": float(change.std()),
    }
    print(numbers, flush=True)
    save(out / "left_out.json", {**about(), "core_seconds": time.process_time() - began, **numbers, "rows": rows})
