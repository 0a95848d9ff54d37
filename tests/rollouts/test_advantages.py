from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from detent.rollouts.advantages import gae

Array = NDArray[np.float64]


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


# gamma = lambda = 1/2, so an advantage carries a quarter of the next one.
#   t  reward  value  ends by      V(final)   delta = r + V(next) / 2 - V
#   0    1       2                            1 + 4/2 - 2   =  1
#   1    2       4    truncation      6       2 + 6/2 - 4   =  1
#   2    3       1                            3 + 3/2 - 1   =  3.5
#   3    4       3    termination   100       4 + 0   - 3   =  1
#   4    5       2    both          100       5 + 0   - 2   =  3
#   5    6       8    (cut off)      10       6 + 10/2 - 8  =  3
REWARD, VALUE = column(1, 2, 3, 4, 5, 6), column(2, 4, 1, 3, 2, 8)
FINAL = column(0, 6, 0, 100, 100, 0)
TRUNCATED, TERMINATED = column(0, 1, 0, 0, 1, 0).bool(), column(0, 0, 0, 1, 1, 0).bool()
LAST = torch.tensor([10.0], dtype=torch.float64)


def test_truncation_bootstraps_from_the_final_observation_and_termination_does_not() -> None:
    advantages = gae(REWARD, VALUE, LAST, FINAL, TERMINATED, TRUNCATED, 0.5, 0.5)
    # A0 = 1 + A1/4, A1 = 1 (end), A2 = 3.5 + A3/4, A3 = 1 (end), A4 = 3 (end), A5 = 3 (cut off).
    assert advantages.flatten().tolist() == [1.25, 1.0, 3.75, 1.0, 3.0, 3.0]


def test_termination_bootstraps_where_a_task_asks_for_it() -> None:
    advantages = gae(REWARD, VALUE, LAST, FINAL, TERMINATED, TRUNCATED, 0.5, 0.5, bootstrap_on_termination=True)
    # delta3 = 4 + 100/2 - 3 = 51, delta4 = 5 + 100/2 - 2 = 53, A2 = 3.5 + 51/4; nothing is carried over an end.
    assert advantages.flatten().tolist() == [1.25, 1.0, 16.25, 51.0, 53.0, 3.0]


def test_a_value_that_must_not_count_may_even_be_nan() -> None:
    # A simulator that blows up terminates with NaN in its last observation.
    final = FINAL.clone()
    final[TERMINATED] = torch.nan
    advantages = gae(REWARD, VALUE, LAST, final, TERMINATED, TRUNCATED, 0.5, 0.5)
    assert advantages.flatten().tolist() == [1.25, 1.0, 3.75, 1.0, 3.0, 3.0]


def lambda_return_advantages(
    reward: Array,
    value: Array,
    final: Array,
    bootstrapped: Array,
    ended: Array,
    *,
    last: float,
    gamma: float,
    lam: float,
) -> Array:
    """The definition for one environment: the lambda-weighted mean of all n-step advantages, each summed anew.

    Sum over n < N of (1 - lambda) lambda^(n-1) A^(n), plus lambda^(N-1) A^(N) for the longest, which reaches the end
    of the episode or of the rollout.
    """
    steps = len(reward)
    out = np.zeros(steps)
    for t in range(steps):
        stop = next((k for k in range(t, steps) if ended[k]), steps - 1)
        for n in range(1, stop - t + 2):
            k = t + n - 1
            after = value[k + 1] if k + 1 < steps else last
            if ended[k]:
                after = final[k] if bootstrapped[k] else 0.0
            n_step = sum(gamma**i * reward[t + i] for i in range(n)) + gamma**n * after - value[t]
            out[t] += (lam ** (n - 1) if k == stop else (1 - lam) * lam ** (n - 1)) * n_step
    return out


@pytest.mark.parametrize("bootstrap_on_termination", [False, True])
@pytest.mark.parametrize(("gamma", "lam"), [(0.99, 0.95), (0.9, 0.0), (1.0, 1.0), (0.0, 0.9)])
def test_advantages_are_the_weighted_mean_of_all_n_step_advantages(
    gamma: float, lam: float, bootstrap_on_termination: bool
) -> None:
    rng = np.random.default_rng(0)
    reward, value, final = torch.from_numpy(rng.standard_normal((3, 40, 5)))
    last = torch.from_numpy(rng.standard_normal(5))
    terminated, truncated = torch.from_numpy(rng.random((2, 40, 5)) < 0.1)
    assert (terminated & truncated).any()
    advantages = gae(reward, value, last, final, terminated, truncated, gamma, lam, bootstrap_on_termination)
    ended = terminated | truncated
    bootstrapped = ended if bootstrap_on_termination else truncated & ~terminated
    for i in range(5):
        columns = (tensor[:, i].numpy() for tensor in (reward, value, final, bootstrapped, ended))
        expected = lambda_return_advantages(*columns, last=float(last[i]), gamma=gamma, lam=lam)
        np.testing.assert_allclose(advantages[:, i], expected, rtol=1e-10, atol=1e-12)


def test_nothing_flows_between_environments_or_into_the_arguments() -> None:
    generator = torch.Generator().manual_seed(0)
    reward, value, final = torch.randn(3, 20, 4, generator=generator)
    last = torch.randn(4, generator=generator)
    terminated, truncated = torch.rand(2, 20, 4, generator=generator) < 0.1
    before = [tensor.clone() for tensor in (reward, value, last, final)]
    together = gae(reward, value, last, final, terminated, truncated, 0.99, 0.95)
    assert all(torch.equal(tensor, old) for tensor, old in zip((reward, value, last, final), before, strict=True))
    for i in range(4):
        r, v, f, done, cut = (tensor[:, i : i + 1] for tensor in (reward, value, final, terminated, truncated))
        assert torch.equal(gae(r, v, last[i : i + 1], f, done, cut, 0.99, 0.95), together[:, i : i + 1])
