"""The bins of a head: how many in each action dimension, and where."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.config import HeadConfig
from detent.errors import ConfigError
from detent.spec import ActionSpec, bin_positions


def bin_counts(action: ActionSpec, config: HeadConfig) -> tuple[int, ...]:
    """Return the number of bins of each action dimension; of a discrete space, the number of its values."""
    each = config.bins_per_dimension
    if action.discrete:
        if each:
            raise ConfigError("head.bins_per_dimension is for continuous actions; a discrete space has its own values")
        if max(action.counts) > 32767:
            raise ConfigError(f"the action space has {max(action.counts)} values in a dimension; at most 32767 work")
        return action.counts
    if each and len(each) != action.size:
        raise ConfigError(
            f"head.bins_per_dimension has {len(each)} numbers, and the action {action.size} dimensions; give one each"
        )
    return each or (config.bins,) * action.size


def bin_buffer(action: ActionSpec, config: HeadConfig) -> Tensor:
    """Return the positions of the bins `[m, K]`, filled up with the upper bound where a dimension has fewer than K."""
    mu = config.mu if config.spacing == "mu-law" and not action.discrete else 0.0
    return torch.from_numpy(bin_positions(action, bin_counts(action, config), mu)).float()


def equal_count(action: ActionSpec, config: HeadConfig, head: str) -> int:
    """Return the number of bins of every dimension; refuse different numbers for a head that cannot have them."""
    counts = bin_counts(action, config)
    if len(set(counts)) > 1:
        raise ConfigError(
            f"the action dimensions have {', '.join(map(str, counts))} bins; the {head} head needs the same number in "
            "all of them"
        )
    return counts[0]


def require_continuous(action: ActionSpec, head: str) -> None:
    """Refuse a discrete action space for a head that draws real numbers."""
    if action.discrete:
        raise ConfigError(
            f"the action space is discrete, and the {head} head draws real numbers; use a variant over bins, such as "
            "rn-d or mlp-d"
        )
