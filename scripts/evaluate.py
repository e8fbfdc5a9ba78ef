"""One posterior from the samples of one or several runs: metrics, report, summary. See conf/evaluate.yaml."""

from __future__ import annotations

import os
from pathlib import Path

os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors through: bdl prints them as one line

import hydra
import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

import bdl
from bdl.errors import ConfigError
from bdl.posterior.reference import agreement, read_probabilities, write_probabilities
from bdl.posterior.report.numbers import Summary, summarise
from bdl.posterior.report.page import write_page
from bdl.posterior.report.terminal import print_summary
from bdl.run.config import register_resolvers
from bdl.run.console import one_line_errors
from bdl.run.directory import read_metrics, write_metrics
from bdl.run.machine import keep_freed_memory

register_resolvers()


@hydra.main(version_base="1.3", config_path="../conf", config_name="evaluate")
def main(cfg: DictConfig) -> None:
    with one_line_errors():  # here, or Hydra adds a line of its own
        run(cfg)


def run(cfg: DictConfig) -> None:
    if not cfg.runs:
        raise ConfigError("runs is empty: runs=[outputs/a,outputs/b] names at least one run directory")
    runs = [Path(cfg.runs)] if isinstance(cfg.runs, str) else [Path(r) for r in cfg.runs]
    configs = [read_config(run) for run in runs]
    keep_freed_memory()
    torch.set_num_threads(configs[0].threads or os.cpu_count() or 1)
    datamodule, net = instantiate(configs[0].data), instantiate(configs[0].model, _convert_="all")
    posterior = bdl.Posterior.load(runs, net.to(find_device(cfg.device)), skip_bad=cfg.skip_bad)
    ood = getattr(datamodule, "ood", lambda: None)()
    items = {"train": cfg.train_items}
    summary = summarise(posterior, {s: datamodule.slices(s, items.get(s)) for s in cfg.splits}, ood=ood)
    summary.metrics |= chain_temperatures(runs)
    out = Path(cfg.out or runs[0] / "evaluation")
    compare(cfg, summary, out)
    facts = {
        "title": f"{len(runs)} runs, merged" if len(runs) > 1 else runs[0].name,
        "runs": ", ".join(str(r) for r in runs),
        "N": f"{datamodule.num_data:,}",
        "samples": f"{posterior.samples:,} of {posterior.chains} chains",
        "T": f"{summary.metrics['temperature']:g}",
    }
    write_page(out / "report.html", posterior, summary, facts, "", None)
    write_metrics(out / "metrics.json", summary.metrics)
    print_summary(summary.metrics)
    print(f"report: {out / 'report.html'}")


def compare(cfg: DictConfig, summary: Summary, out: Path) -> None:
    """Probabilities of the test items: beside those of a reference, and into a file."""
    if "test" not in summary.evaluations:
        return
    probs = summary.evaluations["test"].bma
    if cfg.reference is not None:
        found = agreement(probs, read_probabilities(cfg.reference))
        summary.metrics |= {f"test/bma/{name}": value for name, value in found.items()}
        print("{agreement:.2%} agreement with the reference, total variation {total_variation:.4f}".format(**found))
    if cfg.save_probs:
        out.mkdir(parents=True, exist_ok=True)
        write_probabilities(out / "probs-test.npy", probs)


def find_device(name: str | None) -> torch.device:
    """The device of that name, or the GPU if there is one; ConfigError for a name that there is not."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros((), device=device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts that there is some
        raise ConfigError(f"device={name} can't be had here: {str(error).splitlines()[0]}") from error
    return device


def chain_temperatures(runs: list[Path]) -> dict[str, float]:
    """noise_ratio, t_eff and kinetic_temperature as the finished runs measured them, means over runs."""
    finished = [read_metrics(run / "metrics.json") for run in runs if (run / "metrics.json").exists()]
    names = ("noise_ratio", "t_eff", "kinetic_temperature")
    return {name: float(np.mean([m[name] for m in finished])) for name in names} if finished else {}


def read_config(run: Path) -> DictConfig:
    path = run / "config.yaml"
    if not path.exists():
        raise ConfigError(
            f"{run} is not a run directory: it has no config.yaml; runs=[...] takes folders that train.py wrote"
        )
    loaded = OmegaConf.load(path)
    assert isinstance(loaded, DictConfig)
    return loaded


if __name__ == "__main__":
    with one_line_errors():
        main()
