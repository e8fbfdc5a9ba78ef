"""Configurations as Hydra composes them, and Hydra's work that is the same from test to test done once.

A configuration of bdl is made of some thirty YAML files. Which files they are follows from the groups that a command
line chooses; its values come on top. Hydra and OmegaConf parse each text, list the files and merge them anew for every
command, twice for each script, which took half of the time of a small run.
"""

import copy
import dataclasses
import functools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import omegaconf._utils
import omegaconf.base
import yaml
from hydra._internal import config_loader_impl, defaults_list
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.defaults_list import Overrides
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, open_dict

ROOT = Path(__file__).parents[2]
SCRIPTS, CONF = ROOT / "scripts", ROOT / "conf"
Loader = config_loader_impl.ConfigLoaderImpl


def composed(*overrides: str, command: str = "train") -> DictConfig:
    """The configuration of a command line, with Hydra's own part."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose(command, list(overrides), return_hydra_config=True)


def compose(*overrides: str, command: str = "train") -> DictConfig:
    cfg = composed(*overrides, command=command)
    HydraConfig.instance().set_config(cfg)
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg


def remember(replace: Callable[[Any, str, Any], None]) -> None:
    """Remember from now on what Hydra has parsed and merged of bdl's own files. replace: such as `setattr`."""
    replace(yaml, "load", _remembering_load(yaml.load))
    parse = functools.cache(omegaconf.base.parse)  # nobody changes a parse tree
    replace(omegaconf.base, "parse", parse)
    replace(omegaconf._utils, "parse", parse)
    replace(OverridesParser, "parse_rule", _remembering_rule(OverridesParser.parse_rule))
    replace(CachingConfigRepository, "__init__", _share_sources)
    replace(ConfigRepository, "load_config", _remembering_file(ConfigRepository.load_config))
    replace(defaults_list, "_create_interpolation_map", _map_if_needed(defaults_list._create_interpolation_map))
    replace(config_loader_impl, "create_defaults_list", _remembering_list(config_loader_impl.create_defaults_list))
    replace(Loader, "_load_single_config", _remembering_part(Loader._load_single_config))
    replace(Loader, "_compose_config_from_defaults_list", _remembering_merge(Loader._compose_config_from_defaults_list))


def _remembering_load(load):
    parsed = {}

    def of_text(stream, Loader):
        text = stream if isinstance(stream, str | bytes) else stream.read()
        key = (text, Loader.__qualname__)
        if key not in parsed:
            parsed[key] = pickle.dumps(load(text, Loader))
        return pickle.loads(parsed[key])

    return of_text


def _remembering_rule(parse_rule):
    parsed = {}

    def of_line(self, line, rule):
        if (line, rule) not in parsed:
            parsed[line, rule] = parse_rule(self, line, rule)
        return copy.copy(parsed[line, rule])  # the caller sets its config_loader

    return of_line


def _share_sources(self, delegate):
    """Hydra copies the sources with all configurations that are registered, so that their list can be replaced."""
    self.delegate, self.cache = copy.copy(delegate), {}


def _remembering_file(load):
    loaded = {}

    def of_path(self, config_path):
        if _may_change(self):
            return load(self, config_path)
        if config_path not in loaded:
            loaded[config_path] = pickle.dumps(load(self, config_path))
        return pickle.loads(loaded[config_path])

    return of_path


def _map_if_needed(create):
    def of_defaults(overrides, defaults_list, self_added):
        """Hydra makes one for every file, and reads those of files whose defaults have a ${...}."""
        needed = any(default.is_interpolation() for default in defaults_list)
        return create(overrides, defaults_list, self_added) if needed else None

    return of_defaults


def _remembering_list(create):
    lists = {}

    def of_groups(repo, config_name, overrides_list, prepend_hydra, skip_missing):
        if _may_change(repo):
            return create(repo, config_name, overrides_list, prepend_hydra, skip_missing)
        overrides = Overrides(repo, overrides_list)
        groups = (overrides.override_choices, overrides.append_group_defaults, overrides.deletions)
        key = repr((config_name, prepend_hydra, skip_missing, *groups))
        if key not in lists:
            lists[key] = create(repo, config_name, overrides_list, prepend_hydra, skip_missing)
        return dataclasses.replace(lists[key], config_overrides=overrides.config_overrides)

    return of_groups


def _remembering_part(load):
    parts = {}

    def of_file(self, default, repo):
        if _may_change(repo):
            return load(self, default, repo)
        key = repr(default)
        if key not in parts:
            parts[key] = pickle.dumps(load(self, default, repo))
        return pickle.loads(parts[key])

    return of_file


def _remembering_merge(merge):
    merged = {}

    def of_files(self, defaults, repo):
        if _may_change(repo):
            return merge(self, defaults, repo)
        key = repr(defaults)
        if key not in merged:
            merged[key] = pickle.dumps(merge(self, defaults, repo))
        return pickle.loads(merged[key])

    return of_files


def _may_change(repo) -> bool:
    """Whether there are files of a user beside bdl's own."""
    return any(source.scheme() == "file" and Path(source.path) != CONF for source in repo.get_sources())
