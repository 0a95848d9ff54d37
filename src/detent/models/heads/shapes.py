"""A check of the tensors that a head returns."""

from __future__ import annotations

import torch

from detent.errors import ConfigError
from detent.models.heads.base import Head
from detent.spec import ActionSpec

_ROWS = 3
"""States of the check; not 1, which would broadcast."""


@torch.no_grad()
def require_shapes(head: Head, action: ActionSpec) -> None:
    """Refuse a head whose methods return other shapes than the interface has, or actions outside the bounds."""
    wanted = (_ROWS, action.size)
    params = head(torch.zeros(_ROWS, head.num_outputs))
    if params.dim() != 3 or params.shape[:2] != wanted:
        raise _wrong(head, "forward", params, f"[{_ROWS}, {action.size}, P]")
    choice = head.sample(params, torch.Generator().manual_seed(0))
    found = {
        "sample": choice,
        "mode": head.mode(params),
        "log_prob": head.log_prob(params, choice),
        "entropy": head.entropy(params),
        "to_action": head.to_action(choice),
        "mean_action": head.mean_action(params),
    }
    for name, tensor in found.items():
        if tuple(tensor.shape) != wanted:
            raise _wrong(head, name, tensor, f"[{_ROWS}, {action.size}]")
    low, high = torch.tensor(action.low), torch.tensor(action.high)
    for name in ("to_action", "mean_action"):
        if ((found[name] < low - 1e-5) | (found[name] > high + 1e-5)).any():
            raise ConfigError(
                f"{type(head).__name__}.{name} gave {found[name][0].tolist()}, outside the action's bounds"
            )


def _wrong(head: Head, method: str, tensor: torch.Tensor, wanted: str) -> ConfigError:
    return ConfigError(
        f"{type(head).__name__}.{method} returned shape {list(tensor.shape)} for {_ROWS} states; it must be {wanted}, "
        "with an entry for each action dimension"
    )
