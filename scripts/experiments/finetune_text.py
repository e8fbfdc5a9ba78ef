"""Adapters alone on a second text, over one frozen GPT: python scripts/experiment.py finetune_text.

A small GPT is trained by AdamW on the characters of Coriolanus. Adapters (LoRA) in its upper block are then sampled by
SGHMC on a second text, the prose of docs/, in the characters that Coriolanus has. The result has the NLL and the
perplexity of both texts' last tenths before and after.
"""

import json
import math
import time
from tempfile import TemporaryDirectory

import torch
from tools.results import RESULTS, ROOT, about, save
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.contrib.language.gpt import GPT
from bdl.contrib.language.lora import ADAPTERS, lora
from bdl.data.frame import locate

DOCS = ("samplers", "tables", "tuning", "predictions", "own-network", "convention", "verdict", "results")
CONTEXT, BATCH, CHAINS = 64, 32, 4
EPOCHS, STEPS, LR, TEMPERATURE = 4, 300, 0.02, 1.0


def windows(text: str, vocabulary: str) -> tuple[TensorDataset, TensorDataset]:
    """Windows of the first nine tenths and of the last tenth: tokens, and the ones after them."""
    number = {character: i for i, character in enumerate(vocabulary)}
    tokens = torch.tensor([number[c] for c in text if c in number])
    cut = 9 * len(tokens) // 10

    def cut_up(part: Tensor) -> TensorDataset:
        n = (len(part) - 1) // CONTEXT
        return TensorDataset(part[: n * CONTEXT].view(n, CONTEXT), part[1 : n * CONTEXT + 1].view(n, CONTEXT))

    return cut_up(tokens[:cut]), cut_up(tokens[cut:])


def trained(net: nn.Module, data: TensorDataset) -> nn.Module:
    loader = DataLoader(data, BATCH, shuffle=True, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.003)
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten()).backward()
            optimizer.step()
    return net.eval()


@torch.no_grad()
def before(net: nn.Module, data: TensorDataset) -> float:
    x, y = data.tensors
    return float(nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten()))


def after(posterior: bdl.Posterior, data: TensorDataset) -> float:
    x, y = data.tensors
    probs = torch.as_tensor(posterior.predict(x).probs).view(len(y), CONTEXT, -1)
    return -float(probs.gather(-1, y.unsqueeze(-1)).double().log().mean())


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    first = locate("package:coriolanus.txt").read_text()
    second = "\n".join((ROOT / "docs" / f"{name}.md").read_text() for name in DOCS)
    vocabulary, began = "".join(sorted(set(first))), time.process_time()
    play, prose = windows(first, vocabulary), windows(second, vocabulary)
    body = trained(GPT(len(vocabulary), CONTEXT, width=64, layers=2, heads=4), play[0])
    training = time.process_time() - began
    net = lora(body, r=8, lora_alpha=16, target_modules=["blocks.1.mlp.0", "blocks.1.mlp.2"])
    loader = DataLoader(prose[0], BATCH, shuffle=True, generator=torch.Generator().manual_seed(0))
    with TemporaryDirectory() as folder:
        keep = bdl.schedules.EveryStep(STEPS // 2, STEPS // 20)
        tokens = len(prose[0]) * CONTEXT
        posterior = bdl.sample(
            net, bdl.CategoricalNLL(), loader, folder, steps=STEPS, lr=LR, temperature=TEMPERATURE, chains=CHAINS,
            keep=keep, only=ADAPTERS, num_data=tokens, start="given",
        )  # fmt: skip
        sampling = time.process_time() - began - training
        scores = {
            name: {"before": before(body, data[1]), "after": after(posterior, data[1])}
            for name, data in {"Coriolanus": play, "documentation": prose}.items()
        }
    for score in scores.values():
        score |= {f"perplexity_{when}": math.exp(score[when]) for when in ("before", "after")}
    record = {
        **about(), "training_tokens": tokens, "steps": STEPS, "chains": CHAINS, "temperature": TEMPERATURE, "lr": LR,
        "parameters": sum(p.numel() for p in body.parameters()),
        "adapters": sum(p.numel() for n, p in net.named_parameters() if "lora_" in n),
        "core_seconds": {"training": training, "sampling": sampling}, "test": scores,
    }  # fmt: skip
    save(RESULTS / "finetune-text.json", record)
    print(json.dumps(record))
