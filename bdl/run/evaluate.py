"""One posterior from the samples of one or several runs: metrics, report, summary. See conf/evaluate.yaml."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hydra.utils import instantiate
from omegaconf import DictConfig

import bdl
from bdl.data.module import as_data_module
from bdl.errors import ConfigError
from bdl.likelihoods import Likelihood
from bdl.posterior.evaluation import ClassEvaluation
from bdl.posterior.reference import agreement, read_probabilities, write_probabilities
from bdl.posterior.report.numbers import Summary, diverged_fact, summarise
from bdl.run.build import check_same_data
from bdl.run.machine import find_device, keep_freed_memory, use_threads
from bdl.run.progress import WorkProgress
from bdl.run.records import read_metrics
from bdl.run.stored import read_runs
from bdl.run.write_report import load_start, publish, units_of


def evaluate(cfg: DictConfig) -> None:
    """Merge the runs, evaluate their samples, write metrics.json and report.html."""
    if not cfg.runs:
        raise ConfigError("runs is empty: runs=[outputs/a,outputs/b] names at least one run directory")
    runs = [Path(cfg.runs)] if isinstance(cfg.runs, str) else [Path(run) for run in cfg.runs]
    configs = read_runs(runs, cfg.trust)
    keep_freed_memory()
    use_threads(configs[0].threads)
    # Of bdl's own data, whose table may have fewer rows than a batch by now: it is then named as a changed one
    own = configs[0].data._target_.startswith("bdl.data.")
    datamodule = as_data_module(instantiate(configs[0].data, **({"batch_size": None} if own else {})))
    net = instantiate(configs[0].model, _convert_="all")
    loss = instantiate(configs[0].loss)
    likelihood = loss if isinstance(loss, Likelihood) else None
    device = find_device(cfg.device)
    posterior = bdl.Posterior.load(runs, net.to(device), skip_bad=cfg.skip_bad, likelihood=likelihood)
    check_same_data(datamodule, posterior)
    start = load_start(runs, net, likelihood, cfg.skip_bad)
    items = {"train": cfg.train_items}
    loaders = {split: datamodule.slices(split, items.get(split)) for split in cfg.splits}
    with WorkProgress("evaluating") as progress:
        summary = summarise(posterior, loaders, ood=datamodule.ood(), progress=progress, start=start)
    summary.metrics |= chain_temperatures(runs)
    out = Path(cfg.out or runs[0] / "evaluation")
    if "test" in summary.evaluations:
        compare_with_reference(summary, cfg.reference, out / "probs-test.npy" if cfg.save_probs else None)
    facts = {
        "title": f"{len(runs)} runs, merged" if len(runs) > 1 else runs[0].name,
        "runs": ", ".join(str(run) for run in runs),
        "N": f"{datamodule.num_data:,}",
        "samples": f"{posterior.samples:,} of {posterior.chains} chains",
        **diverged_fact(posterior),
        "T": f"{summary.metrics['temperature']:g}",
    }
    publish(out, posterior, summary, facts, units=units_of(datamodule))


def compare_with_reference(summary: Summary, reference: str | None, save: Path | None) -> None:
    """Compare the probabilities of the test items with those in the file `reference`; write them to the file `save`."""
    test = summary.evaluations["test"]
    if not isinstance(test, ClassEvaluation):
        if reference is not None or save is not None:
            raise ConfigError("reference= and save_probs= are about class probabilities, and this run predicts numbers")
        return
    probs = test.bma
    if reference is not None:
        scores = agreement(probs, read_probabilities(reference))
        summary.metrics |= {f"test/bma/{name}": value for name, value in scores.items()}
        print("{agreement:.2%} agreement with the reference, total variation {total_variation:.4f}".format(**scores))
    if save is not None:
        save.parent.mkdir(parents=True, exist_ok=True)
        write_probabilities(save, probs)


def chain_temperatures(runs: Sequence[Path]) -> dict[str, float]:
    """noise_ratio and temperatures as the finished runs measured them, means over runs."""
    finished = [read_metrics(run / "metrics.json") for run in runs if (run / "metrics.json").exists()]
    measured = ("kinetic_temperature", "configurational_temperature")
    names = ("noise_ratio", "t_eff", *measured, *(f"{name}_se" for name in measured))
    return {name: float(np.mean([m.get(name, math.nan) for m in finished])) for name in names} if finished else {}
