"""Memory and time of chains of adapters over one frozen body: python scripts/bench.py adapters [OUT.json].

The body is a GPT of 10^8 parameters at random values; 8 chains sample adapters of rank 8 in the attention of its upper
blocks, or of all of them, by SGHMC on shared batches of one window, through `bdl.sample`, which also stores samples and
a checkpoint, and loads the posterior. Each case runs in a process of its own. The peaks are what the kernel counts of
the process, above what it held before the body was made; a small network was sampled before, so that the libraries are
loaded.
"""

import itertools
import json
import statistics
import tempfile
from pathlib import Path

import torch
from tools.chains import Clock
from tools.results import RESULTS, about, save
from torch.utils.data import DataLoader, TensorDataset

import bdl
from bdl.contrib.language.gpt import GPT
from bdl.contrib.language.lora import lora
from benchmarks.peak_memory import in_new_processes, peak_above, status

CHAINS, RANK, LAYERS, STEPS = 8, 8, 14, 6
VOCABULARY, CONTEXT = 256, 16  # a batch is one window of so many tokens
CASES = {"upper": (LAYERS - 2, LAYERS - 1), "all": tuple(range(LAYERS))}  # blocks that have adapters


def sampled(net: torch.nn.Module, blocks: tuple[int, ...], folder: str) -> dict[str, float]:
    """Adapters into the attention of these blocks, STEPS steps of all chains, and the posterior that was stored."""
    named = [f"blocks.{i}.attention.{name}" for i in blocks for name in ("queries_keys_values", "out")]
    adapted, clock = lora(net, r=RANK, lora_alpha=2 * RANK, target_modules=named), Clock()
    tokens = torch.randint(VOCABULARY, (STEPS, CONTEXT + 1), generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(tokens[:, :-1], tokens[:, 1:]), batch_size=1)
    keep = bdl.schedules.EveryStep(burn_in=0, every=STEPS // 2)
    bdl.sample(
        adapted, bdl.CategoricalNLL(), loader, folder, steps=STEPS, lr=1e-4, dynamics=bdl.SGHMC(0.1), chains=CHAINS,
        only="*.lora_*", num_data=STEPS * CONTEXT, keep=keep, callbacks=[clock],
    )  # fmt: skip
    each = [after - before for before, after in itertools.pairwise(clock.ends)]
    count = sum(p.numel() for name, p in adapted.named_parameters() if "lora_" in name)
    return {"adapters": count, "step_core_seconds": statistics.median(each)}


def measure(blocks: tuple[int, ...]) -> dict[str, float]:
    """Peak of building and sampling in bytes, and by how much of the body it is above the body."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        sampled(GPT(VOCABULARY, CONTEXT, 32, 2, 2), (0, 1), f"{folder}/small")

        def work() -> None:
            net = GPT(VOCABULARY, CONTEXT, 768, LAYERS, 12)
            found["body"] = sum(p.numel() for p in net.parameters())
            found.update(sampled(net, blocks, f"{folder}/run"))

        peak = peak_above(status("VmRSS"), work)
    return {**found, "peak": peak, "above": peak / (4 * found["body"]) - 1}


def main(out: Path = RESULTS / "adapters.json") -> None:
    found = in_new_processes(measure, [(blocks,) for blocks in CASES.values()])
    settings = {"chains": CHAINS, "rank": RANK, "context": CONTEXT, "layers": LAYERS}
    record = {**about(), "torch": torch.__version__, "threads": 1, **settings}
    record["cases"] = dict(zip(CASES, found, strict=True))
    save(out, record)
    print(json.dumps(record, indent=1))
