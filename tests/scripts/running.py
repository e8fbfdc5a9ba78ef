"""The scripts run as their users run them, in this process."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, open_dict

ROOT = Path(__file__).parents[2]
SCRIPTS, CONF = ROOT / "scripts", ROOT / "conf"
TINY = ("logger=none", "chains=2", "trainer.max_steps=12", "model.sizes=[36,6]", "collect.keep.every=2")
SMOOTHED = ("loss._target_=torch.nn.CrossEntropyLoss", "+loss.label_smoothing=0.1")


def module_of(script: str):
    spec = importlib.util.spec_from_file_location(f"{script}_script", SCRIPTS / f"{script}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


train = module_of("train")


def compose(*overrides: str) -> DictConfig:
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = hydra.compose("train", list(overrides), return_hydra_config=True)
    HydraConfig.instance().set_config(cfg)
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg


def sampled(folder: Path, *overrides: str) -> train.Callbacks:
    """What train.py does up to the end of sampling, without evaluation and report."""
    cfg = compose(f"run_dir={folder}", *overrides)
    directory = train.RunDirectory(cfg.run_dir, cfg)
    data = train.instantiate(cfg.data, **({"chains": None} if cfg.shared_batches else {}))
    train.complete(cfg, data)
    module, _ = train.build_module(cfg, data)
    callbacks = train.build_callbacks(cfg, data, directory)
    train.build_trainer(cfg, callbacks).fit(module, data, weights_only=True)
    return callbacks


def samples(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((folder / "samples").iterdir())}


def whole(folder: Path, *overrides: str) -> None:
    cfg = compose(f"run_dir={folder}", "trainer=debug", *TINY, *overrides)
    train.run(cfg)
    GlobalHydra.instance().clear()


def refusal(result: tuple[int, str, list[str]]) -> str:
    status, _, err = result
    assert status == 1, err
    assert len(err) == 1 and err[0].startswith("bdl: "), err
    return err[0]
