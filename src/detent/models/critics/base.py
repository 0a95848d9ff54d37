"""The interface of a critic."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn


class CriticHead(nn.Module, ABC):
    """What the critic's network predicts about the return, how it is trained on returns, and its value.

    Made of the `critic` section of the configuration, and of its own `Options` where it has a dataclass of that name.
    """

    num_outputs: int
    """Numbers per state that the network's last layer must give."""
    output_gain = 1.0
    """Scale of the orthogonal initialization of that layer."""
    clips_values = False
    """Whether `loss` can hold a value within `clip` of the old one (`update.value_clip`)."""

    @abstractmethod
    def value(self, outputs: Tensor) -> Tensor:
        """Map network outputs `[B, num_outputs]` to values `[B]`."""

    @abstractmethod
    def loss(self, outputs: Tensor, returns: Tensor, old_value: Tensor, clip: float) -> Tensor:
        """Return the mean loss of outputs `[B, num_outputs]` against `returns` `[B]`.

        `old_value` `[B]` is what the critic said when the rollout was collected; `clip` is 0 unless `clips_values`.
        """

    def statistics(self, outputs: Tensor, returns: Tensor) -> dict[str, Tensor]:
        """Return further scalars worth logging, means over transitions."""
        return {}
