from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch import Generator, Tensor, nn

import detent
from detent.models.policy import Policy
from detent.rollouts.batch import Batch
from detent.rollouts.rollout import NonFiniteError
from detent.training.finiteness import is_loss, require_finite_update
from detent.training.run_directory import read_rows

FINE = {"policy_loss": -0.1, "value_loss": 2.0, "approx_kl": 0.01, "approx_kl_by_dimension/3": 0.0, "grad_snr": 1.0}


def good() -> Iterator[tuple[str, Tensor]]:
    return nn.Linear(2, 2).named_parameters()


def unread() -> Iterator[tuple[str, Tensor]]:
    raise AssertionError("the parameters are read from the device although every metric is finite")
    yield


def test_finite_metrics_give_no_warning_and_leave_the_parameters_unread() -> None:
    assert require_finite_update(FINE, unread(), 7) is None
    assert require_finite_update({}, unread(), 7) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "name",
    ["grad_variance", "grad_variance_normalized", "grad_snr", "approx_kl_by_dimension/3", "kl", "explained_variance"],
)
def test_a_diagnostic_is_a_warning(name: str, value: float) -> None:
    assert require_finite_update({**FINE, name: value}, good(), 7) == (
        f"the update of iteration 7 measured {name} = {value}; losses and parameters are finite, so training continues"
    )


def test_one_sentence_names_all_diagnostics() -> None:
    warning = require_finite_update({**FINE, "grad_snr": math.nan, "kl/0": math.inf}, good(), 1)
    assert warning is not None
    assert "measured grad_snr = nan, kl/0 = inf;" in warning


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["policy_loss", "value_loss", "loss", "my_loss/2"])
def test_a_loss_is_an_error_that_names_it_and_no_diagnostic(name: str, value: float) -> None:
    sentence = f"the update of iteration 7 gave {name} = {value}"
    with pytest.raises(NonFiniteError, match=f"^{re.escape(sentence)}$"):
        require_finite_update({**FINE, "grad_snr": math.nan, name: value}, good(), 7)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_parameter_is_an_error_that_names_it_and_what_led_to_it(value: float) -> None:
    actor = nn.Linear(2, 2)
    actor.weight.data[1, 0] = value
    policy = nn.ModuleDict({"actor": actor, "critic": nn.Linear(2, 1)})
    sentence = "the update of iteration 7 gave grad_norm = inf, and non-finite numbers in actor.weight"
    with pytest.raises(NonFiniteError, match=f"^{re.escape(sentence)}$"):
        require_finite_update({**FINE, "grad_norm": math.inf}, policy.named_parameters(), 7)
    sentence = "the update of iteration 7 gave value_loss = nan, and non-finite numbers in actor.weight"
    with pytest.raises(NonFiniteError, match=f"^{re.escape(sentence)}$"):
        require_finite_update({**FINE, "value_loss": math.nan}, policy.named_parameters(), 7)


def test_losses_are_told_by_their_names() -> None:
    assert [name for name in (*FINE, "loss_scale", "glossary", "loss/0") if is_loss(name)] == [
        "policy_loss",
        "value_loss",
        "loss/0",
    ]


class Dizzy:
    """Changes nothing; its third update measures an infinite diagnostic, or with the option a NaN loss."""

    notes: tuple[str, ...] = ()

    @dataclass(frozen=True)
    class Options:
        metric: str = "grad_snr"

    def __init__(self, policy: Policy, config: detent.Config, options: Options) -> None:
        self._metric, self._updates = options.metric, 0

    def update(
        self, batch: Batch, learning_rate: float, generator: Generator, extra_scalars: dict[str, Tensor] | None = None
    ) -> dict[str, float]:
        self._updates += 1
        found = {name: float(value) for name, value in (extra_scalars or {}).items()}
        found |= {"policy_loss": 0.5, "value_loss": 0.5, "entropy": 1.0, "grad_snr": 2.0}
        return found | ({self._metric: math.inf} if self._updates == 3 else {})

    def state(self) -> dict[str, Tensor]:
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None: ...

    def close(self) -> None: ...


def few(metric: str) -> detent.Config:
    settings = {"steps": 336, "schedule_steps": 336, "rollout_steps": 16, "env.num_envs": 4, "threads": 1}
    settings |= {"update.minibatches": 2, "normalize.warmup_steps": 4, "actor.width": 8, "eval.episodes": 1}
    options = {"update.options": {"metric": metric}, "eval.deploy": "mode"}
    return detent.configure(
        "detent.envs.scripted:Target-v0", algo=f"{__name__}:Dizzy", overrides={**settings, **options}
    )


def test_a_run_continues_past_an_infinite_diagnostic_and_logs_null(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="the update of iteration 3 measured grad_snr = inf; .* training continues"):
        assert detent.train(few("grad_snr"), out=tmp_path / "run").finished
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["grad_snr"] for row in rows] == [2.0, 2.0, None, 2.0, 2.0]


def test_a_run_ends_at_an_infinite_loss(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="the update of iteration 3 gave value_loss = inf"):
        detent.train(few("value_loss"), out=tmp_path / "run")
