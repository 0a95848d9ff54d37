from __future__ import annotations

import math
import re
from collections.abc import Iterator

import pytest
from torch import Tensor, nn

from detent.rollouts.rollout import NonFiniteError
from detent.training.finiteness import is_loss, require_finite_update

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
