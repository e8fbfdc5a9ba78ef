"""What a part of a network costs beside all of it: bytes of a sample, memory, time of a step. Writes a table.

A ResNet18 and a small transformer are trained here for some steps on data that a formula gives; their accuracy is not
the point. Times are those of one CPU thread, so that other work on the machine does not count. Each case runs in a
process of its own, because the peak of a process's memory never falls.

    python scripts/bench.py parts [folder]
"""

import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torchvision
from tools.results import about, markdown, save
from torch import Tensor, nn

import bdl
from benchmarks.peak_memory import in_new_processes

STEPS, CHAINS, BATCH = 6, 4, 16
CASES = {
    "ResNet18": {"all": None, "last block": ["layer4.*", "fc.*"], "last layer": "fc.*"},
    "transformer": {"all": None, "LoRA, r = 8": "*.lora_*", "last layer": "*.classifier.*"},
}


def images() -> tuple[Tensor, Tensor]:
    """(512, 3, 32, 32) stripes whose direction is the class, of 10, in noise."""
    random = torch.Generator().manual_seed(0)
    y = torch.randint(10, (512,), generator=random)
    angle, grid = y.view(-1, 1, 1) * torch.pi / 10, torch.arange(32.0)
    stripes = torch.sin(0.5 * (grid.view(1, -1, 1) * angle.cos() + grid.view(1, 1, -1) * angle.sin()))
    return stripes.unsqueeze(1) + 0.5 * torch.randn(512, 3, 32, 32, generator=random), y


def sentences() -> tuple[Tensor, Tensor]:
    """(512, 32) tokens of 1,000; the class, of 2, says whether more of them are even."""
    x = torch.randint(1000, (512, 32), generator=torch.Generator().manual_seed(0))
    return x, (x % 2 == 0).float().mean(1).gt(0.5).long()


def resnet18() -> nn.Module:
    return torchvision.models.resnet18(num_classes=10)


def transformer() -> nn.Module:
    """DistilBERT with 4 layers of width 128, and random weights."""
    from transformers import AutoModelForSequenceClassification, DistilBertConfig

    size: dict[str, int] = dict(dim=128, n_layers=4, n_heads=4, hidden_dim=512, vocab_size=1000)
    config = DistilBertConfig(**size, max_position_embeddings=32, num_labels=2)  # type: ignore[call-arg]
    return bdl.models.Logits(AutoModelForSequenceClassification.from_config(config))


MODELS = {"ResNet18": (resnet18, images), "transformer": (transformer, sentences)}


def pretrain(name: str, path: Path, steps: int) -> float:
    """Train the network with Adam and save its state_dict; returns the accuracy on its training items."""
    build, data = MODELS[name]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, (x, y) = build(), data()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(steps):
        rows = torch.randperm(len(y))[:32]
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
    torch.save(net.state_dict(), path)
    with torch.no_grad():
        return float((net.eval()(x[:256]).argmax(-1) == y[:256]).float().mean())


def measure(name: str, part: str, path: Path) -> dict[str, Any]:
    """Sample a part with 4 chains: parameters, bytes of a sample, CPU ms of a step, memory above the start."""
    torch.set_num_threads(1)
    build, data = MODELS[name]
    net, only = bdl.CheckpointStart(str(path)).load(build()), CASES[name][part]
    if part.startswith("LoRA"):
        net = bdl.models.lora(net, r=8, lora_alpha=16, target_modules=["q_lin", "v_lin"])
    x, y = data()
    stack = bdl.ChainStack(net, CHAINS, only=only, start="given", shared=True).train()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sampler = bdl.Sampler(
        stack.net.named_parameters(), bdl.SGHMC(), num_data=len(y), lr=1e-4, chains=CHAINS, temperature=0.1
    )
    times = []
    for step in range(STEPS):
        rows = torch.arange(BATCH) + BATCH * (step % (len(y) // BATCH))
        began = time.process_time()

        def closure(rows: Tensor = rows) -> Tensor:
            sampler.zero_grad()
            losses = torch.stack([nn.functional.cross_entropy(outputs, y[rows]) for outputs in stack(x[rows])])
            losses.sum().backward()
            return losses.detach()

        sampler.step(closure)
        times.append(time.process_time() - began)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as run:
        record = bdl.SampleStore(run).append(sampler, stack, bdl.CategoricalNLL())
        frozen = Path(run, "samples", "frozen.safetensors")
        return {
            "network": name, "sampled": part, "parameters": sampler.chain.theta.shape[-1],
            "bytes of one network": record.bytes // CHAINS, "frozen bytes": frozen.stat().st_size if only else 0,
            "CPU ms per step": 1000 * statistics.median(times[2:]), "MB above the start": (after - before) / 1024,
        }  # fmt: skip


def main(folder: Path = Path("outputs/parts")) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, cases in CASES.items():
        path = folder / f"{name}.pt"
        print(f"{name}: accuracy {pretrain(name, path, 40):.0%} on its training items", flush=True)
        rows += in_new_processes(measure, [(name, part, path) for part in cases])
    save(folder / "parts.json", {**about(), "rows": rows})
    print(markdown(list(HEADS), [[shown(row) for shown in HEADS.values()] for row in rows]))


HEADS = {
    "network": lambda row: row["network"],
    "sampled": lambda row: row["sampled"],
    "parameters": lambda row: f"{row['parameters']:,}",
    "kB of a network": lambda row: f"{row['bytes of one network'] / 1000:,.0f}",
    "kB frozen, once": lambda row: f"{row['frozen bytes'] / 1000:,.0f}",
    "CPU ms a step": lambda row: f"{row['CPU ms per step']:,.0f}",
    "MB while sampling": lambda row: f"{row['MB above the start']:,.0f}",
}
