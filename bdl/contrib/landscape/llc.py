"""The local learning coefficient of a run's trained network, or of a checkpoint of it. See conf/llc.yaml."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn

import bdl
from bdl.contrib.landscape.estimate import CoefficientEstimate
from bdl.disk.files import write_atomically
from bdl.engine.functional import named_tensors
from bdl.errors import ConfigError
from bdl.posterior.trained import START
from bdl.run.config import plain
from bdl.run.evaluate import recorded_data
from bdl.run.section import Section
from bdl.run.stored import load_runs

SETTINGS = ("chains", "steps", "burn_in", "temperature", "localization", "batch_size", "lr", "seed")


def llc(cfg: DictConfig) -> None:
    """Measure one network on the training items of the run, print the estimate, and write it to the file `out`."""
    run = Path(str(cfg.run)).expanduser()
    posterior, config = load_runs([run], cfg.trust, cfg.device)
    data = recorded_data(config, posterior)
    which = put_weights(posterior, run, cfg.path, cfg.chain)
    sampled = plain(config.sampler).get("only") if "sampler" in config else None
    settings: dict[str, Any] = {name: cfg[name] for name in SETTINGS}
    found = bdl.learning_coefficient(
        posterior.net, Section.of(config.loss).build(), data.slices("train"),
        only=sampled if cfg.only is None else plain(cfg.only), **settings,
    )  # fmt: skip
    print(f"{which}\n{found}")
    for check in found.checks:
        print(f"  {check}")
    if cfg.out is not None:
        write_atomically(Path(cfg.out).expanduser(), json.dumps(described(found, which), indent=1).encode())


@torch.no_grad()
def put_weights(posterior: bdl.Posterior, run: Path, path: str | None, chain: int) -> str:
    """Give the network of the posterior the weights of a file, or of one chain; returns what it has, in a few words.

    A run that began at a deep ensemble has trained networks, which are its minima. Of other runs the last state of the
    chain is taken, a minimum where the run was an optimiser's.

    Raises ConfigError for a file of another network, and for a chain that there is not.
    """
    net: nn.Module = posterior.net
    if path is not None:
        try:
            bdl.CheckpointStart(str(path)).load(net)
        except ConfigError as error:
            raise ConfigError(str(error).replace("start.path=", "path=")) from error
        return f"the weights of {path}"
    began = (run / START).exists()
    source = bdl.Posterior.opened(run / START, net) if began else posterior
    if chain >= source.chains:
        raise ConfigError(f"chain={chain}: the run has the chains 0 to {source.chains - 1}")
    last = [sample.tensors for sample in source.stream() if sample.chain == chain][-1]
    present = named_tensors(net)
    for name, tensor in {**last, **source.stores[0].frozen()}.items():
        present[name].copy_(tensor)
    return f"network {chain} of the start of {run}" if began else f"the last state of chain {chain} of {run}"


def described(found: CoefficientEstimate, which: str) -> dict[str, Any]:
    numbers = (
        "value", "std_error", "loss", "num_data", "temperature", "localization", "parameters", "lr", "held", "heat",
    )  # fmt: skip
    checks = [{"name": c.name, "passed": c.passed, "words": c.words} for c in found.checks]
    each = {"chains": found.chains.tolist(), "effective_draws": found.effective_draws, "sound": found.sound}
    return {"network": which, **{name: getattr(found, name) for name in numbers}, **each, "checks": checks}
