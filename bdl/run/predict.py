"""Predictions for the rows of a table, from the samples of one or several runs. See conf/predict.yaml."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

import bdl
from bdl.data.frame import require_columns
from bdl.data.loader import TensorSlices
from bdl.data.table import TableEncoding
from bdl.data.target import ClassTarget, NumberTarget
from bdl.errors import ConfigError
from bdl.files import write_atomically
from bdl.likelihoods import Likelihood
from bdl.posterior.prediction import Prediction, ValuePrediction
from bdl.run.machine import find_device, keep_freed_memory, use_threads
from bdl.run.records import PREPROCESSING, read_preprocessing
from bdl.run.stranger import read_runs

QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}
DIGITS = 7  # those of float32


def predict(cfg: DictConfig) -> None:
    """Read the rows, predict them with all samples, write one row of predictions for each."""
    if missing := sorted(OmegaConf.missing_keys(cfg)):
        raise ConfigError(
            f"{missing[0]} has no value: input=new.csv names a table, output=preds.csv the file for its predictions"
        )
    runs, output = _runs(cfg), Path(cfg.output).expanduser()
    if output.exists() and output.samefile(Path(cfg.input).expanduser()):
        raise ConfigError(f"output={cfg.output} is the input: choose another file for the predictions")
    configs, encoding = read_runs(runs, cfg.trust), read_encoding(runs[0])
    keep_freed_memory()
    use_threads(configs[0].threads)
    net = instantiate(configs[0].model, _convert_="all")
    posterior = load_posterior(runs, configs[0], net.to(find_device(cfg.device)), cfg.skip_bad)
    reading = dataclasses.replace(encoding.reading, format=_format(cfg.input))
    wanted = encoding.id if cfg.id is None else cfg.id
    rows = reading.read(cfg.input, "input", text=wanted)
    if cfg.id is not None:
        require_columns(rows, cfg.id, "id=", str(cfg.input))
    x = encoding.inputs.encode(rows, "input: ", Path(cfg.input).name)
    columns = predicted_columns(posterior, x, encoding.target)
    table = pd.concat([rows[[name for name in wanted if name in rows]], columns], axis=1)
    write_atomically(output, table.to_csv(index=False).encode())
    print(f"{len(table):,} rows, {posterior.samples:,} samples of {posterior.chains} chains: {output}")


def load_posterior(runs: Sequence[Path], config: DictConfig, net: torch.nn.Module, skip_bad: bool) -> bdl.Posterior:
    """The samples of the runs; their configuration says what the outputs of the network mean."""
    loss = instantiate(config.loss)
    return bdl.Posterior.load(runs, net, skip_bad=skip_bad, likelihood=loss if isinstance(loss, Likelihood) else None)


def read_encoding(run: Path) -> TableEncoding:
    """The columns of a run's table. Raises ConfigError for a run on other data."""
    plain = read_preprocessing(run)
    if plain.get("kind") != "table":
        raise ConfigError(f"{run} is no run on a table, but on {plain.get('kind')}: predict these with bdl.Posterior")
    try:
        return TableEncoding.from_plain(plain)
    except ConfigError as error:
        raise ConfigError(f"{run / PREPROCESSING}: {error}") from error


def predicted_columns(posterior: bdl.Posterior, x: Tensor, target: ClassTarget | NumberTarget) -> pd.DataFrame:
    """The columns of predictions for inputs x (n, features), in the target's own units. Entropies are in nats."""
    prediction = posterior.predict(TensorSlices(x, torch.zeros(len(x))))
    if isinstance(target, NumberTarget) and isinstance(prediction, ValuePrediction):
        if target.task == "regression":
            prediction = prediction.rescaled(target.mean, target.std)
        moments = {name: getattr(prediction, name)[:, 0] for name in ("mean", "std", "aleatoric", "epistemic")}
        quantiles = {name: prediction.quantile(q)[:, 0] for name, q in QUANTILES.items()}
        return pd.DataFrame(_in_digits({**moments, **quantiles}))
    if isinstance(target, ClassTarget) and isinstance(prediction, Prediction):
        classes = [target.labels[k] for k in prediction.probs.argmax(-1).tolist()]
        probs = {f"p_{label}": prediction.probs[:, k] for k, label in enumerate(target.labels)}
        uncertainty = {"entropy": prediction.entropy, "epistemic": prediction.epistemic}
        return pd.DataFrame({"class": classes, **_in_digits({**probs, **uncertainty})})
    raise ConfigError(
        f"the run's loss, {posterior.target.get('loss')}, does not predict the {target.task} of {target.name}: sample "
        "again with loss=auto"
    )


def _in_digits(columns: dict[str, Tensor]) -> dict[str, list[str]]:
    return {name: [f"{value:.{DIGITS}g}" for value in column.tolist()] for name, column in columns.items()}


def _runs(cfg: DictConfig) -> Sequence[Path]:
    """The run directories of `run` and `runs`. Raises ConfigError for none."""
    runs = [] if cfg.run is None else [cfg.run]
    runs += [cfg.runs] if isinstance(cfg.runs, str) else list(cfg.runs or [])
    if not runs:
        raise ConfigError("run has no value: run=outputs/a names a run directory, runs=[outputs/a,outputs/b] several")
    return [Path(run).expanduser() for run in runs]


def _format(path: str) -> str:
    return "parquet" if Path(path).suffix in (".parquet", ".pq") else "csv"
