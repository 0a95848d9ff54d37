"""The wait policy of OpenMP threads, in fresh processes because it must precede torch."""

import os
import subprocess
import sys

import pytest

from detent.threads import core_numbers, pinned


def run(code: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_detent_sets_the_wait_policy_before_it_imports_torch() -> None:
    code = "import detent, os; detent.Policy; from detent.threads import warn_if_too_late; warn_if_too_late(2); "
    assert run(code + "print(os.environ['OMP_WAIT_POLICY'])") == "PASSIVE\n"


def test_a_program_that_imported_torch_first_is_told() -> None:
    code = "import torch, detent; detent.Policy; from detent.threads import warn_if_too_late; "
    assert "OMP_WAIT_POLICY=PASSIVE" in run(code + "warn_if_too_late(2)")
    assert run(code + "warn_if_too_late(1)") == ""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux pins threads to cores")
def test_a_thread_stays_on_its_core_and_is_free_again() -> None:
    cores = core_numbers()
    with pinned(cores[-1]):
        assert core_numbers() == [cores[-1]]
    assert core_numbers() == cores
    with pinned(None):
        assert core_numbers() == cores
