"""Cumulative logits over ordered bins (Tang & Agrawal, "Discretizing Continuous Action Space for On-Policy
Optimization", 2020)."""

from __future__ import annotations

import math

from torch import Tensor

from detent.models.heads.categorical import CategoricalHead


class OrdinalHead(CategoricalHead):
    """A softmax over cumulative logits, so that neighbouring bins share most of what they learn.

    Tang & Agrawal give bin i the logit sum_{j<=i} log s(l_j) + sum_{j>i} log(1 - s(l_j)) with the sigmoid s. From one
    bin to the next it grows by log s(l_i) - log(1 - s(l_i)) = l_i, so up to a constant it is the cumulative sum of l.
    """

    def logits(self, outputs: Tensor) -> Tensor:
        # A sum over up to K outputs; the root keeps its variance that of a single logit.
        return super().logits(outputs).cumsum(-1) / math.sqrt(max(self.counts))

    def outputs_gradient(self, gradient: Tensor) -> Tensor:
        following = gradient.flip(-1).cumsum(-1).flip(-1)
        return super().outputs_gradient(following / math.sqrt(max(self.counts)))
