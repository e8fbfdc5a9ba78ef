"""A learned precision beside a search over fixed ones: python scripts/bench_learned_precision.py [TABLE.csv ...].

Every trial is the same short run of full-batch MCLMC from a deep ensemble, with the network of the default of tables,
fewer chains and fewer steps. The search makes a trial for each of three precisions and takes the one with the lowest
NLL on validation rows; learning makes one trial. The tables are airfoil, scikit-learn's diabetes, and those that are
named, whose target is the last column; of each, a random thousand rows at most. Targets are standardised.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning as L
import pandas as pd
import torch
from sklearn.datasets import load_diabetes
from torch import Tensor

import bdl
from bdl.data import TensorBatches
from bdl.data.frame import locate
from bdl.models import MLP
from bdl.run.machine import device_name

OUT = Path(__file__).parent / "results" / "tables" / "learned-precision.json"
FIXED = (0.3, 1.0, 3.0)
CHAINS, STEPS, KEPT = 4, 2500, 50
ROWS = 1000
MIN_STD = 0.01  # the least standard deviation that a network predicts, in those of the target


def tables(paths: list[Path]) -> Iterator[tuple[str, Tensor]]:
    yield "airfoil", numbers(pd.read_csv(locate("package:airfoil.csv")))
    diabetes: Any = load_diabetes(as_frame=True)
    yield "diabetes", numbers(diabetes.frame)
    for path in paths:
        yield path.stem, numbers(pd.read_csv(path))


def numbers(frame: pd.DataFrame) -> Tensor:
    """(n, p + 1) standardised columns of a random choice of rows, the target last."""
    values = torch.tensor(frame.to_numpy("float64"))
    values = values[torch.randperm(len(values), generator=torch.Generator().manual_seed(0))[:ROWS]]
    std, mean = torch.std_mean(values[: 6 * len(values) // 10], 0)
    return ((values - mean) / std.where(std > 0, 1.0)).float()


def trial(values: Tensor, precision: float | bdl.Learned) -> dict[str, float]:
    """NLL on the validation and on the test rows, and core-seconds. Of ten rows six train, two validate, two test."""
    cut = [6 * len(values) // 10, 8 * len(values) // 10]
    train, val, test = values.tensor_split(cut)
    likelihood, began = bdl.HeteroscedasticNLL(min_std=MIN_STD), time.process_time()
    net = MLP([values.shape[1] - 1, 16, 16, 16, 2], activation="tanh")
    stack = bdl.ChainStack(net, CHAINS)
    batches = TensorBatches(train[:, :-1], train[:, -1:], len(train), chains=CHAINS)
    bdl.AdamWStart(patience=20).train(stack, batches, likelihood)
    burn_in = int(0.4 * STEPS)
    dynamics = bdl.MCLMC(energy_var=0.01, energy_var_start=0.5, adapt_steps=burn_in)
    build = functools.partial(
        bdl.Sampler, dynamics=dynamics, num_data=len(train), lr=1e-3, prior=bdl.Gaussian(precision)
    )
    with TemporaryDirectory() as folder:
        keep = bdl.schedules.EveryStep(burn_in, (STEPS - burn_in) // KEPT)
        trainer = L.Trainer(
            max_steps=STEPS, max_epochs=-1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
            callbacks=[bdl.CollectSamples(keep, full_energy=False)],
        )  # fmt: skip
        trainer.fit(bdl.BayesianModule(stack, build, loss=likelihood), batches)
        seconds = time.process_time() - began
        posterior = bdl.Posterior.load(folder, net.double(), likelihood=likelihood)
        scores = {}
        for name, rows in (("val", val.double()), ("test", test.double())):
            prediction: Any = posterior.predict(rows[:, :-1])
            scores[name] = -prediction.log_density(rows[:, -1:]).mean().item()
    return {**scores, "core_seconds": round(seconds, 1)}


def compared(values: Tensor) -> dict[str, Any]:
    fixed = {str(precision): trial(values, precision) for precision in FIXED}
    chosen = min(fixed, key=lambda name: fixed[name]["val"])
    return {"fixed": fixed, "chosen": chosen, "searched": fixed[chosen], "learned": trial(values, bdl.Learned())}


def table_of(record: dict[str, Any]) -> str:
    head = ["table", *(f"precision {p:g}" for p in FIXED), "chosen", "searched", "learned"]
    lines = [head, ["---"] * len(head)]
    for name, row in record["tables"].items():
        nll = [f"{row['fixed'][str(p)]['test']:.3f}" for p in FIXED]
        lines.append([name, *nll, row["chosen"], f"{row['searched']['test']:.3f}", f"{row['learned']['test']:.3f}"])
    about = f"bdl {record['bdl']}, one core of {record['device']}, {record['date']}. NLL of the test rows."
    return f"{about}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", type=Path, metavar="TABLE.csv")
    torch.set_num_threads(1)
    record: dict[str, Any] = {"bdl": bdl.__version__, "device": device_name(), "date": date.today().isoformat()}
    record["settings"] = {"chains": CHAINS, "steps": STEPS, "kept": KEPT, "rows": ROWS, "hyperprior": [1.0, 1.0]}
    record["tables"] = {}
    for name, values in tables(parser.parse_args().tables):
        torch.manual_seed(0)
        record["tables"][name] = compared(values)
        print(name, record["tables"][name], flush=True)
        OUT.write_text(json.dumps(record, indent=1) + "\n")
        OUT.with_suffix(".md").write_text(table_of(record))


if __name__ == "__main__":
    main()
