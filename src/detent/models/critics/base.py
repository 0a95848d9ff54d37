"""The interface of a critic."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn


class CriticHead(nn.Module, ABC):
    """What the critic's network predicts about the return, how it is trained on returns, and the value it implies.

    Constructed with the `critic` section of the configuration, and with its own `Options` if it defines a dataclass of
    that name.
    """

    num_outputs: int
    """Number of outputs of the network's last layer."""
    output_gain = 1.0
    """Gain of that layer's orthogonal initialization."""
    clips_values = False
    """Whether `loss` can clip a value to within `clip` of the old one (`update.value_clip`)."""

    @abstractmethod
    def value(self, outputs: Tensor) -> Tensor:
        """Map network outputs `[B, num_outputs]` to values `[B]`."""

    @abstractmethod
    def loss(self, outputs: Tensor, returns: Tensor, old_value: Tensor, clip: float) -> Tensor:
        """Return the mean loss of outputs `[B, num_outputs]` against `returns` `[B]`.

        `old_value` `[B]` is the critic's value when the rollout was collected; `clip` is 0 unless `clips_values`.
        """

    def statistics(self, outputs: Tensor, returns: Tensor) -> dict[str, Tensor]:
        """Return further scalars to log, averaged over transitions."""
        return {}
