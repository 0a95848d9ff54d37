"""Whether an update may be kept: a broken loss or policy ends the run, a broken diagnostic is worth a warning."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from torch import Tensor

from detent.rollouts.rollout import NonFiniteError


def require_finite_update(
    metrics: Mapping[str, float], parameters: Iterable[tuple[str, Tensor]], iteration: int
) -> str | None:
    """Return a warning that names the diagnostics that are NaN or infinite, or None if every metric is finite.

    Raises NonFiniteError if a loss or a parameter is not finite. `parameters` (`policy.named_parameters()`) are read
    from the device only if a metric is not finite: what makes them NaN shows in a loss or in the gradient's norm.
    """
    bad = {name: value for name, value in metrics.items() if not math.isfinite(value)}
    if not bad:
        return None
    broken = {name: value for name, value in bad.items() if is_loss(name)}
    damaged = [name for name, parameter in parameters if not parameter.detach().isfinite().all()]
    if broken or damaged:
        found = _listed(broken) if broken else _listed(bad)
        where = f", and non-finite numbers in {', '.join(damaged)}" if damaged else ""
        raise NonFiniteError(f"the update of iteration {iteration} gave {found}{where}")
    return (
        f"the update of iteration {iteration} measured {_listed(bad)}; losses and parameters are finite, so training "
        "continues"
    )


def is_loss(name: str) -> bool:
    """Return whether a metric is a training objective: `policy_loss`, `value_loss`, a plug-in's `loss/2`."""
    return name.partition("/")[0].endswith("loss")


def _listed(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in metrics.items())
