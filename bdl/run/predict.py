"""Predictions for the rows of a table, from the samples of one or several runs. See conf/predict.yaml."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from omegaconf import DictConfig

import bdl
from bdl.advice import naming
from bdl.data.far import warn_of_far
from bdl.data.frame import require_columns
from bdl.data.loader import TensorSlices
from bdl.data.table_encoding import TableEncoding, checksum
from bdl.data.target import ClassTarget, NumberTarget
from bdl.data.targets import ClassTargets, NumberTargets, number_targets
from bdl.data.total_rows import warn_of_totals
from bdl.data.values import Frame, with_numbers
from bdl.disk.files import write_atomically
from bdl.display import count_of
from bdl.errors import BdlWarning, ConfigError
from bdl.likelihoods import in_words
from bdl.posterior.calibrated import Calibration
from bdl.posterior.calibration import ConformalIntervals, ConformalSets, TemperatureScaling
from bdl.posterior.doubt import tell_doubt
from bdl.posterior.networks import WeightKind
from bdl.posterior.prediction import AnyPrediction, ClassColumnsPrediction, Prediction, ValuePrediction
from bdl.run.records import PREPROCESSING, REFIT, folders_of, read_calibration, read_preprocessing, refitted
from bdl.run.spreadsheet import without_formulas
from bdl.run.stored import load_runs

SPREAD = ("std", "aleatoric", "epistemic")
DIGITS = 7  # the digits of float32; numbers that are large beside their spread get so many digits of the spread


def predict(cfg: DictConfig) -> None:
    """Read the rows, predict them with all samples, write one row of predictions for each."""
    runs, output = folders_of(cfg.run) + folders_of(cfg.runs), output_file(cfg.output, cfg.input)
    if not runs:
        raise ConfigError("run has no value: run=outputs/a names a run directory, runs=[outputs/a,outputs/b] several")
    if cfg.refit and (used := refitted(runs)) != runs:
        print(f"predict: samples of {', '.join(map(str, used))}, from all rows; refit=false leaves them out")
        runs = used
    posterior, _ = load_runs(runs, cfg.trust, cfg.device, cfg.skip_bad)
    encoding, calibration = read_encoding(runs[0], posterior), calibration_of(runs)
    rows, kind = read_rows(cfg.input, encoding, cfg.id), weights_of(posterior, calibration, cfg.weights)
    predictions = predicted(posterior, encoding, rows, Path(cfg.input).name, calibration, kind)
    copied = [name for name in (encoding.id if cfg.id is None else cfg.id) if name in rows]
    if doubled := [name for name in copied if name in predictions]:
        raise ConfigError(f"id={doubled[0]} is a column of the predictions too: rename it in {cfg.input}")
    table = pd.concat([rows[copied], as_texts(predictions)], axis=1)
    table = table if cfg.raw else without_formulas(table)
    write_atomically(output, table.to_csv(index=False).encode())
    tell_doubt(runs)
    weighted = f", {posterior.stacking.words}" if kind == "stacking" and posterior.stacking else ""
    print(
        f"{count_of(len(table), 'row')}, {count_of(posterior.samples, 'sample')} of "
        f"{count_of(posterior.chains, 'chain')}{weighted}: {output}"
    )


def output_file(output: str, rows: str) -> Path:
    """The file for the predictions. Raises ConfigError for a folder, and for the file that has the rows."""
    path, rows_file = Path(output).expanduser(), Path(rows).expanduser()
    if path.is_dir():
        raise ConfigError(f"output={output} is a folder: name the file for the predictions")
    if path.exists() and not path.is_file():
        raise ConfigError(f"output={output} is no regular file: name the file for the predictions")
    if path.exists() and rows_file.exists() and path.samefile(rows_file):
        raise ConfigError(f"output={output} is the input: choose another file for the predictions")
    return path


def read_rows(path: str, encoding: TableEncoding, copied: Sequence[str] | None) -> Frame:
    """The rows of a file, as text where they are copied or encoded. Raises ConfigError where a copied column lacks."""
    kind = "parquet" if Path(path).suffix in (".parquet", ".pq") else "csv"
    reading = dataclasses.replace(encoding.reading, format=kind)
    wanted = encoding.id if copied is None else copied
    rows = reading.read(path, "input", text=[*wanted, *encoding.inputs.written])
    if copied is not None:
        require_columns(rows, copied, "id=", path)
    return rows


def predict_table(
    run: str | Path | Sequence[str | Path],
    rows: Frame,
    trust: Sequence[str] = (),
    device: str | None = None,
    refit: bool = True,
    weights: Literal["stacking", "uniform"] | None = None,
) -> Frame:
    """Predictions for the rows of a pandas table, from a run of `data=csv` or `data=parquet`, or from several.

    Args:
        run: run directories with one target distribution.
        rows: a pandas.DataFrame with the columns of the run's table. The target may be missing.
        trust: packages that the config.yaml of a run may build parts from, besides bdl's own.
        device: None for a GPU if there is one.
        refit: where `refit=all` has sampled from all rows of the table, use these samples.
        weights: of the chains. None: those of `weights=stacking`, where the run has them and no calibration, which
            belongs to uniform weights.

    Returns a DataFrame with the index of `rows` and the columns of `predict.py`: `mean`, `std`, `aleatoric`,
    `epistemic`, `q05`, `q50` and `q95` in the units of the target, `mean_<target>` and so on for each of several; or
    `class`, `p_<label>`, and `entropy` and `epistemic` in nats, of several columns of classes `class_<target>`,
    `p_<target>_<label>` and so on. A run with `calibrate=` has the columns that
    `calibrated_columns` adds or replaces. Counts with an exposure have `rate`, the mean over the exposure of the row.

    Raises ConfigError for missing columns, for text where numbers belong, for a run on other data, and for stacking
    weights that the run has not, or that meet a calibration.
    """
    if not isinstance(rows, pd.DataFrame):
        kind = type(rows).__name__
        made = {"dict": "pandas.DataFrame(rows)", "Series": "rows.to_frame().T"}.get(kind, "pandas.DataFrame(...)")
        raise ConfigError(f"predict_table needs a DataFrame with the columns of the run's table, got {kind}: {made}")
    names = [str(name).strip() for name in rows.columns]
    if doubled := [name for name, count in Counter(names).items() if count > 1]:
        raise ConfigError(f"predict_table: rows has two columns with the name {doubled[0]!r}: rename one of them")
    runs = refitted(folders_of(run)) if refit else folders_of(run)
    calibration = calibration_of(runs)
    posterior, _ = load_runs(runs, trust, device)
    encoding = read_encoding(runs[0], posterior)
    numbered = rows.set_axis(names, axis=1).reset_index(drop=True)  # messages count its rows
    numbered = encoding.reading.with_gaps(with_numbers(numbered, encoding.inputs.written))
    kind = weights_of(posterior, calibration, weights)
    predictions = predicted(posterior, encoding, numbered, "the table", calibration, kind).set_index(rows.index)
    tell_doubt(runs)
    return predictions


def weights_of(
    posterior: bdl.Posterior, calibration: Calibration | None, asked: Literal["stacking", "uniform"] | None
) -> WeightKind | None:
    """The weights of a prediction: those that are asked for, or else of the chains, or None for those of the samples.

    Raises ConfigError for stacking beside a calibration, whose promise holds for uniform weights.
    """
    if calibration is not None and asked == "stacking":
        raise ConfigError(
            "weights=stacking: the calibration of this run was fitted to uniform weights, and says nothing of stacked "
            "ones; leave weights=stacking out, or remove calibration.json"
        )
    if asked is not None or calibration is not None or posterior.stacking is None:
        return asked
    return "stacking"


def calibration_of(runs: Sequence[Path]) -> Calibration | None:
    """What `calibrate=` has fitted to the samples of these runs: one run's, or that of the evaluation of several.

    A refit has none, because its samples have seen the validation rows; a warning says so.
    """
    run = runs[0]
    if run.name == REFIT and read_calibration(run.parent) is not None:
        line = f"the calibration of {run.parent} is not that of its refit, and is left out: refit=false uses it"
        warnings.warn(line, BdlWarning, stacklevel=2)
        return None
    return read_calibration(run) if len(runs) == 1 else None


def calibrated_columns(calibration: Calibration, prediction: AnyPrediction, labels: Sequence[Any]) -> Frame:
    """Columns that a calibration adds to a table of predictions, or puts in the place of the posterior's own.

    Conformal sets: `set`, the labels in the set of a row with | between them. Conformal intervals: `low` and `high`, in
    the units of the target, `low_<target>` and `high_<target>` for each of several. Temperature scaling: `p_<label>`,
    and the `entropy` of these probabilities.
    """
    if isinstance(calibration, ConformalSets) and isinstance(prediction, Prediction):
        held = calibration(prediction).tolist()
        return pd.DataFrame({"set": ["|".join(str(labels[k]) for k, x in enumerate(row) if x) for row in held]})
    if isinstance(calibration, ConformalIntervals) and isinstance(prediction, ValuePrediction):
        ends = dict(zip(("low", "high"), calibration(prediction), strict=True))  # each (n, k)
        if len(labels) < 2:
            return pd.DataFrame({end: values[:, 0].numpy() for end, values in ends.items()})
        return pd.DataFrame({f"{e}_{name}": v[:, j].numpy() for e, v in ends.items() for j, name in enumerate(labels)})
    if isinstance(calibration, TemperatureScaling) and isinstance(prediction, Prediction):
        probs = calibration(prediction)
        columns = {f"p_{label}": probs[:, k].numpy() for k, label in enumerate(labels)}
        return pd.DataFrame({**columns, "entropy": torch.special.entr(probs).sum(1).numpy()})
    raise ConfigError("calibration.json does not fit the run's predictions: remove it, and calibrate again")


def predicted(
    posterior: bdl.Posterior,
    encoding: TableEncoding,
    rows: Frame,
    place: str,
    calibration: Calibration | None = None,
    kind: WeightKind | None = None,
) -> Frame:
    """The columns of predictions for the rows of a table, which messages call `place`.

    They are in the target's own units; entropies are in nats.
    """
    if encoding.lags is not None:
        with naming({}):
            rows, complete = encoding.lags.extend(rows, place)
        alone = dataclasses.replace(encoding, lags=None)
        made = predicted(posterior, alone, rows[complete], place, calibration, kind)
        return made.set_axis(rows.index[complete]).reindex(rows.index)
    with naming({}):  # the run's keys are not to be set any more
        x, target = encoding.encode(rows, "input: ", place), encoding.target  # x: (n, features)
    warn_of_totals(rows, place, "predictions of such rows say nothing")
    warn_of_far(encoding.inputs.columns, rows, posterior.target["num_data"], place)
    prediction = posterior.predict(TensorSlices(x, torch.zeros(len(x))), kind)
    if isinstance(target, NumberTarget | NumberTargets) and isinstance(prediction, ValuePrediction):
        names = [part.name for part in number_targets(target)]
        scale = target.std if target.task == "regression" else 1.0
        if target.task == "regression":
            prediction = prediction.rescaled(target.mean, target.std)
            target.warn_of_far(prediction.mean, prediction.std, posterior.target["num_data"], place)
        if isinstance(calibration, ConformalIntervals):  # it was fitted in the units that the network sees
            calibration = dataclasses.replace(calibration, margin=scale * calibration.margin)
        frame = prediction.to_frame(names)
        if encoding.exposure is not None:
            exposures = encoding.exposure.values(rows, "input: ", place)
            for name in [name for name in frame if name == "mean" or name.startswith("mean_")]:
                frame[name.replace("mean", "rate", 1)] = frame[name] / exposures
        return _with_calibration(frame, calibration, prediction, names)
    if isinstance(target, ClassTargets) and isinstance(prediction, ClassColumnsPrediction):
        return prediction.to_frame(target.labels)
    if isinstance(target, ClassTarget) and isinstance(prediction, Prediction):
        return _with_calibration(prediction.to_frame(target.labels), calibration, prediction, target.labels)
    raise ConfigError(
        f"the run's loss, {in_words(posterior.target.get('loss'))}, does not predict the {target.task} of "
        f"{target.name}: sample again with loss=auto"
    )


def _with_calibration(
    frame: Frame, calibration: Calibration | None, prediction: AnyPrediction, labels: Sequence[Any]
) -> Frame:
    if calibration is None:
        return frame
    columns = calibrated_columns(calibration, prediction, labels)
    return frame.assign(**{name: columns[name].to_numpy() for name in columns})


def read_encoding(run: Path, posterior: bdl.Posterior) -> TableEncoding:
    """The columns of a run's table.

    Raises ConfigError for a run on other data, and for a file that is not the one that its samples were drawn with:
    other means, or other names of the classes, would make other predictions.
    """
    plain, path = read_preprocessing(run), run / PREPROCESSING
    if plain.get("kind") != "table":
        raise ConfigError(f"{run} is no run on a table, but on {plain.get('kind')}: predict these with bdl.Posterior")
    try:
        encoding = TableEncoding.from_plain(plain)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    if checksum(plain) != (posterior.target.get("data") or {}).get("encoding"):
        raise ConfigError(
            f"{path} was altered: its checksum is not the one that samples/target.json has of it (data.encoding); "
            "restore it"
        )
    return encoding


def as_texts(columns: Frame) -> Frame:
    """Numbers with the digits of float32. Places on the axis of a regression's target have so many of their std."""
    texts = columns.copy()
    for name in columns.columns[[dtype.kind == "f" for dtype in columns.dtypes]]:
        kind, _, target = str(name).partition("_")
        std = f"std_{target}" if target else "std"
        units = columns[std] if std in columns and kind not in SPREAD else columns[name]
        pairs = zip(columns[name], units, strict=True)
        texts[name] = ["" if math.isnan(v) else f"{v:.{DIGITS + _magnitude(v, unit)}g}" for v, unit in pairs]
    return texts


def _magnitude(value: float, unit: float) -> int:
    """How many digits of a number stand before those of the unit."""
    ratio = abs(value / unit) if unit else 1.0
    return min(15 - DIGITS, math.floor(math.log10(ratio))) if 1 < ratio < math.inf else 0
