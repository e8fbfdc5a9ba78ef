"""Networks of transformers from a folder on disk: with all their parameters, or with adapters beside them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bdl.advice import override
from bdl.contrib.language.lora import lora as with_adapters
from bdl.errors import ConfigError
from bdl.models.logits import Logits

KINDS = {"ForCausalLM": "AutoModelForCausalLM", "ForSequenceClassification": "AutoModelForSequenceClassification"}
GPT2 = "LMHeadModel"  # how GPT-2's causal model ends


def pretrained(name: str | Path, lora: Mapping[str, Any] | None = None, seed: int = 0) -> nn.Module:
    """A causal or a classification model of transformers as a network that returns logits, (B, T, K) or (B, K).

    Nothing is downloaded, and no code of the folder runs.

    Args:
        name: a folder that `save_pretrained` has written, or a download of one.
        lora: arguments of `peft.LoraConfig` for adapters, such as r, lora_alpha and target_modules; None
            for no adapters. The model's own parameters are then frozen: sample with `only="*.lora_*"`.
        seed: names the start of the adapters.

    Raises ConfigError for a folder without such a model, for adapters that fit no layer, and where the packages
    transformers and peft are missing.
    """
    if find_spec("transformers") is None:
        raise ConfigError("model=hf needs the package transformers: pip install 'bdl[lora]'")
    import transformers

    folder, written = Path(name).expanduser(), override("model.name", str(name))
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{written} is no folder with a config.json: save_pretrained writes one; bdl downloads none")
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        builder = getattr(transformers, _builder_of(config.architectures or [], name))
        with torch.random.fork_rng(devices=[]):
            model = builder.from_pretrained(folder, config=config, local_files_only=True, dtype=torch.float32)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{written} cannot be loaded: {' '.join(str(error).split())}") from error
    model.config.use_cache = False  # the cache holds keys and values, which nobody reads again
    net = Logits(model, trained=True)
    return net if lora is None else with_adapters(net, seed=seed, **lora)


def _builder_of(architectures: list[str], name: str | Path) -> str:
    """The class of transformers that builds the model which the folder says it has."""
    for written in architectures:
        for ending, builder in {**KINDS, GPT2: KINDS["ForCausalLM"]}.items():
            if written.endswith(ending):
                return builder
    wanted = " or ".join(f"...{ending}" for ending in KINDS)
    raise ConfigError(
        f"{override('model.name', str(name))} holds {', '.join(architectures) or 'no model'}: bdl reads {wanted}"
    )
