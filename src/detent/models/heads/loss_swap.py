"""The paper's loss-swap ablation: logits over bins, but the likelihood of a Gaussian around the expected action."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from detent.config import HeadConfig
from detent.models.heads.bins import bin_buffer, equal_count
from detent.models.heads.gaussian import DiagonalGaussian
from detent.spec import ActionSpec


class LossSwapHead(DiagonalGaussian):
    """A Gaussian around sum_k p_k c_k, with the network's logits `[B, m, K]` and one learned log-std per dimension."""

    bins: Tensor

    def __init__(self, action: ActionSpec, config: HeadConfig) -> None:
        super().__init__(action)
        equal_count(action, config, "loss-swap")
        self.register_buffer("bins", bin_buffer(action, config))
        self.num_outputs = self.bins.numel()
        self.log_std = nn.Parameter(torch.full((action.size,), config.log_std_init))

    def forward(self, outputs: Tensor) -> Tensor:
        mean = (outputs.unflatten(-1, self.bins.shape).softmax(-1) * self.bins).sum(-1)
        return torch.stack([mean, self.log_std.expand_as(mean)], dim=-1)
