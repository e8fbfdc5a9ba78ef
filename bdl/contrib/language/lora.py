"""Low-rank adapters (LoRA, Hu et al. 2022) by peft, as a part of a network to sample."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from bdl.errors import ConfigError

ADAPTERS = "*.lora_*"  # pattern of their names, for `only`


def lora(net: nn.Module, *, seed: int = 0, **config: Any) -> nn.Module:
    """A copy of the network with adapters W + (alpha/r) B A in some of its Linear layers.

    B is 0 at the start, so that the outputs are those of the network. The network's own parameters are frozen, and lie
    in the memory of the given network, so that a large one is there once. Sample the adapters with `only="*.lora_*"`,
    and further layers by further patterns.

    Args:
        net: any network; its names get `.base_layer` where a layer has an adapter.
        seed: names the start of A. torch's global random stream stays as it is.
        config: arguments of `peft.LoraConfig`, such as r=8, lora_alpha=16, target_modules=["query", "value"].

    Raises ConfigError where peft is missing, and for a configuration that peft refuses, such as one that fits no layer.
    """
    if find_spec("peft") is None:
        raise ConfigError("bdl.contrib.language.lora needs the package peft: pip install 'bdl[lora]'")
    from peft import LoraConfig, inject_adapter_in_model

    shared = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in net.parameters()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return inject_adapter_in_model(LoraConfig(**config), copy.deepcopy(net, dict(shared)))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"peft refuses these adapters: {' '.join(str(error).split())}") from error
