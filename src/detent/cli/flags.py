"""The flags of a command, derived from its dataclass, and what a flag that does not exist was meant to be."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

from tyro.conf import Positional

from detent.errors import ConfigError

_POSITIONAL = get_args(Positional[str])[1]
# Not -1, which is a value.
_FLAG = re.compile(r"--.+|-[a-zA-Z]")

SYNONYMS = {
    # Stable-Baselines3 and its zoo
    "total-timesteps": "steps",
    "n-timesteps": "steps",
    "n-steps": "rollout-steps",
    "n-envs": "envs",
    "n-epochs": "update.epochs",
    "batch-size": "update.minibatches",
    "learning-rate": "update.learning-rate",
    "gamma": "advantage.gamma",
    "ent-coef": "update.entropy-coef",
    "vf-coef": "update.value-coef",
    "clip-range": "ppo.clip",
    "clip-range-vf": "update.value-clip",
    "normalize-advantage": "update.normalize-advantages",
    "eval-freq": "eval.interval",
    "save-freq": "checkpoint.interval",
    "tensorboard-log": "tensorboard",
    "env": "TASK",
    # CleanRL
    "env-id": "TASK",
    "num-envs": "envs",
    "num-steps": "rollout-steps",
    "num-minibatches": "update.minibatches",
    "update-epochs": "update.epochs",
    "anneal-lr": "update.anneal",
    "norm-adv": "update.normalize-advantages",
    "clip-coef": "ppo.clip",
    "clip-vloss": "update.value-clip",
    "cuda": "device",
    # rsl_rl
    "task": "TASK",
    "num-steps-per-env": "rollout-steps",
    "num-learning-epochs": "update.epochs",
    "num-mini-batches": "update.minibatches",
    "lam": "advantage.gae-lambda",
    "clip-param": "ppo.clip",
    "value-loss-coef": "update.value-coef",
    "desired-kl": "update.target-kl",
    "save-interval": "checkpoint.interval",
    "load-run": "resume",
    "track": "log",
    # everywhere
    "logger": "log",
    "wandb": "log",
    "wandb-project": "log-options",
    "algorithm": "algo",
    "output-dir": "out",
    "gpu": "device",
    "lr": "update.learning-rate",
    "log-dir": "out",
}
"""What other packages call a flag of `detent train`."""


def flags_of(command: Any, prefix: str = "") -> dict[str, str]:
    """Return the flags of a command without their dashes, short and long, with the setting that each one sets."""
    annotated = get_type_hints(command, include_extras=True)
    flags: dict[str, str] = {}
    for name, plain in get_type_hints(command).items():
        markers = getattr(annotated[name], "__metadata__", ())
        if _POSITIONAL in markers:
            flags[name.upper()] = f"{prefix}{name}"
            continue
        sections = [part for part in (plain, *get_args(plain)) if is_dataclass(part)]
        unnamed = any(getattr(marker, "name", None) == "" for marker in markers)
        for section in sections:
            flags |= flags_of(section, prefix if unnamed else f"{prefix}{name}.")
        if not sections:
            short = [alias for marker in markers for alias in getattr(marker, "aliases", None) or ()]
            negated = [f"{prefix}no-{name}"] if plain is bool else []
            flags |= {spelled(flag): f"{prefix}{name}" for flag in (*short, f"{prefix}{name}", *negated)}
    return flags


def spelled(flag: str) -> str:
    """Return a flag without its dashes and with hyphens only, as tyro reads it."""
    return flag.lstrip("-").replace("_", "-")


def given(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each flag among the words of a command line with the word that follows it, or that an `=` attaches."""
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if _FLAG.fullmatch(word):
            flag, equals, value = word.partition("=")
            yield flag, value if equals else following


def meant(flag: str, flags: Iterable[str]) -> list[str]:
    """Return what a flag that does not exist may stand for: a synonym, the last part of a name, or near spellings."""
    word, flags = spelled(flag), list(flags)
    if SYNONYMS.get(word) in flags:
        return [SYNONYMS[word]]
    whole = [each for each in flags if each.rpartition(".")[2] == word]
    if whole:
        return whole
    # A whole name before one whose last part is as near.
    likeness = {each: max(_ratio(word, each), 0.95 * _ratio(word, each.rpartition(".")[2])) for each in flags}
    least = max(0.7, max(likeness.values()) - 0.04)
    return [each for each in sorted(flags, key=likeness.__getitem__, reverse=True) if likeness[each] >= least][:3]


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def require_known(words: Sequence[str], command: type, prog: str) -> None:
    """Refuse a flag that the command does not have, with those that were probably meant."""
    flags = flags_of(command)
    for flag, _ in given(words):
        name = spelled(flag)
        if name in flags or name in ("h", "help", "help-all") or name.startswith("tyro-"):
            continue
        # The short name alone, where a setting has two.
        found = list({flags[each]: each for each in meant(flag, flags)[::-1]}.values())[::-1]
        if not found:
            raise ConfigError(f"there is no flag {flag}; `{prog} --help-all` shows those there are")
        if found[0].isupper():
            raise ConfigError(f"there is no flag {flag}; {found[0]} is given without one: {prog} {found[0]}")
        raise ConfigError(f"there is no flag {flag}; did you mean {' or '.join(f'--{each}' for each in found)}?")
