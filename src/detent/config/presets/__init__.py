"""The paper as data: tasks, presets and variants in the TOML files beside this one, and the `Config` they add up to."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from detent.config import Config
from detent.config.io import override, to_dict
from detent.errors import ConfigError, nearest

PRESETS = ("paper", "authors", "fast")
ALGORITHMS = ("ppo", "spo", "trpo", "td3")
"""Built-in algorithms; `algo` may also name a plug-in, which only its registry knows."""
BASELINES = ("td3",)
"""Algorithms with their own networks: variant and algorithm are the same, and on-policy settings do not apply."""
_ON_POLICY = ("actor", "head", "critic", "normalize", "advantage", "update")
MANISKILL_BACKENDS = ("physx_cpu", "physx_cuda")
FAMILIES = ("gym", "maniskill-state", "maniskill-rgb")
"""Task families that presets have settings for; a ManiSkill task's family depends on what the policy observes."""


_OVER_BINS = ("categorical", "ordinal", "unimodal", "smooth", "coarse-fine")
_HEAD_SETTINGS = {
    "head.bins": (*_OVER_BINS, "loss-swap"),
    "head.bins_per_dimension": _OVER_BINS,
    "head.spacing": (*_OVER_BINS, "loss-swap"),
    "head.mu": (*_OVER_BINS, "loss-swap"),
    "head.mean": ("gaussian",),
    "head.log_std": ("gaussian", "squashed-gaussian"),
    "head.log_std_init": ("gaussian", "squashed-gaussian", "loss-swap"),
    "head.log_std_min": ("gaussian", "squashed-gaussian"),
    "head.log_std_max": ("gaussian", "squashed-gaussian"),
}
"""Settings of the head with the built-in heads that read them; what a plug-in reads is its own affair."""
_HEADS = (*_OVER_BINS, "gaussian", "squashed-gaussian", "beta", "loss-swap")


def head_reads(head: str, setting: str) -> bool:
    """Return whether a head reads a setting such as `head.bins`; a plug-in may read any."""
    return head not in _HEADS or head in _HEAD_SETTINGS.get(setting, _HEADS)


@cache
def table(name: str) -> dict[str, Any]:
    """Return the contents of `presets/<name>.toml`."""
    return tomllib.loads((files(__package__) / f"{name}.toml").read_text())


def is_maniskill(task: str, backend: str = "auto") -> bool:
    """Return whether ManiSkill simulates a task: one of the paper's, or any other with a ManiSkill backend."""
    listed = table("tasks").get(task, {}).get("family")
    return listed == "maniskill" or (listed is None and backend in MANISKILL_BACKENDS)


def configure(
    task: str,
    *,
    preset: str = "paper",
    variant: str = "rn-d",
    algo: str = "ppo",
    scale: str = "auto",
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """Build the configuration of a run from a preset (with its settings for network, task, scale and algorithm), a
    variant and `overrides`.

    `overrides` are nested (`{"ppo": {"clip": 0.1}}`) or dotted (`{"ppo.clip": 0.1}`). `env.obs`, `env.backend` and
    `device` among them also determine which settings a ManiSkill task starts from.
    """
    _require_known(preset, variant, algo)
    changes = nested(overrides or {})
    if "damping" in changes.get("trpo", {}):
        # A preset may calibrate TRPO's steps, which gives the damping another unit; one given alone has its own.
        changes["trpo"] = {"calibrated": False, **changes["trpo"]}
    config = Config(task=task, preset=preset, variant=variant, algo=algo)
    wanted = override(config, {"scale": scale, **changes})
    family = _family(wanted)
    settings = _preset(preset, family)
    groups = {name: settings.pop(name, {}) for name in ("actors", "tasks", "scales", "algos")}
    if groups["scales"]:
        config = override(config, {"scale": _fitting_scale(wanted)})
    elif wanted.scale != "auto":
        raise ConfigError(f"--scale is {wanted.scale}; only ManiSkill tasks have scales, and {task} is not one")
    variant_settings = {key: value for key, value in table("variants")[variant].items() if key != "description"}
    config = override(config, settings)
    config = override(config, {"actor": groups["actors"][variant_settings["actor"]["kind"]]})
    config = override(config, groups["tasks"].get(task, {}))
    config = override(config, groups["scales"].get(config.scale, {}))
    config = override(config, groups["algos"].get(algo, {}))
    return override(override(config, variant_settings), changes)


def require_used(config: Config, settings: Iterable[str]) -> None:
    """Refuse those of the `settings`, which the user typed, that the configuration's head does not read.

    Presets, the files of runs, studies and loops over variants set them for every variant alike; only a flag typed for
    this one run is a mistake.
    """
    head = config.head.kind
    for setting in settings:
        if not head_reads(head, setting):
            readers = _HEAD_SETTINGS[setting]
            heads = {name: content.get("head", {}).get("kind") for name, content in table("variants").items()}
            variants = [name for name, kind in heads.items() if kind in readers]
            raise ConfigError(
                f"variant '{config.variant}' has a {head} head, which has no {setting.partition('.')[2]}; leave "
                f"{setting} out, or choose another variant: {', '.join(variants)}"
            )


def _family(config: Config) -> str:
    if not is_maniskill(config.task, config.env.backend):
        return "gym"
    return "maniskill-state" if config.env.obs == "state" else "maniskill-rgb"


def _fitting_scale(config: Config) -> str:
    """Return the requested scale, or the one for the simulator that this configuration will use."""
    if config.scale != "auto":
        return config.scale
    if config.env.backend in MANISKILL_BACKENDS:
        return "gpu" if config.env.backend == "physx_cuda" else "cpu"
    if config.device != "auto":
        return "gpu" if config.device.startswith("cuda") else "cpu"
    try:
        import torch
    except ImportError:
        return "cpu"
    return "gpu" if torch.cuda.is_available() else "cpu"


def _require_known(preset: str, variant: str, algo: str) -> None:
    for what, name, valid in (
        ("preset", preset, PRESETS),
        ("variant", variant, tuple(table("variants"))),
    ):
        if name not in valid:
            raise ConfigError(f"there is no {what} '{name}'; {nearest(name, valid)}")
    if variant != algo and (variant in BASELINES or algo in BASELINES):
        name = variant if variant in BASELINES else algo
        raise ConfigError(f"'{name}' has networks of its own: give both --variant {name} and --algo {name}")


def check_names(config: Config) -> None:
    """Reject a configuration that contradicts its names, which appear next to the paper's scores."""
    _require_known(config.preset, config.variant, config.algo)
    if config.variant == "custom":
        return
    found = to_dict(config)
    if config.algo in BASELINES:
        names = {name: found[name] for name in ("task", "preset", "variant", "algo")}
        others = {key: value for key, value in found.items() if key not in (*names, *_ON_POLICY)}
        usual = to_dict(configure(**names, overrides=others))
        for section in _ON_POLICY:
            if found[section] != usual[section]:
                raise ConfigError(f"the algorithm is {config.algo}, which takes no {section}.* settings")
        return
    for section in ("actor", "head"):
        for key, value in table("variants")[config.variant][section].items():
            if found[section][key] != value:
                raise ConfigError(
                    f"variant '{config.variant}' has {section}.{key} {value}, this configuration "
                    f"{found[section][key]}; choose the variant that fits (detent.configure and --variant apply its "
                    "settings), or 'custom'"
                )


def _preset(name: str, family: str) -> dict[str, Any]:
    """Return a preset's settings for a family of tasks, merged over those of its base."""
    contents = table(name)
    valid = {"description", "base", *FAMILIES}
    for key in contents:
        if key not in valid:
            raise ConfigError(f"unknown key '{key}' in preset '{name}'; {nearest(key, valid)}")
    if family not in contents:
        raise ConfigError(f"preset '{name}' has no settings for ManiSkill's tasks; use paper or authors")
    base = _preset(contents["base"], family) if "base" in contents else {}
    return merged(base, contents[family])


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested `changes` into a copy of nested `base`."""
    out = dict(base)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = merged(out[key], value) if both else value
    return out


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Convert dotted keys to nested tables."""
    out: dict[str, Any] = {}
    for key, value in flat.items():
        for part in reversed(key.split(".")):
            value = {part: value}
        out = merged(out, value)
    return out
