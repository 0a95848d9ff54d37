import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from detent import doctor
from detent.doctor import Check, diagnose, report

NAMES = {"python", "torch", "cores", "numpy", "Gymnasium MuJoCo", "EnvPool", "OpenGL", "ManiSkill", "tensorboard"}


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_a_working_installation_passes_and_each_check_is_announced(capsys: pytest.CaptureFixture[str]) -> None:
    checks = by_name(diagnose())
    out, err = capsys.readouterr()
    names = ("torch", "Gymnasium", "EnvPool", "OpenGL", "ManiSkill", "tensorboard")
    assert (out, err) == ("", "".join(f"checking {name} ...\n" for name in names))
    assert set(checks) >= NAMES
    assert [check for check in checks.values() if check.ok is False] == []
    assert "stepped" in checks["Gymnasium MuJoCo"].detail


def test_json_is_one_line_with_every_check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    checks = [Check("python", True, "3.11"), Check("OpenGL", None, "absent", "install it")]
    monkeypatch.setattr(doctor, "diagnose", lambda: checks)
    assert report(as_json=True) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    document = json.loads(printed)
    assert document["ok"] is True
    assert document["checks"][1] == {"name": "OpenGL", "ok": None, "detail": "absent", "remedy": "install it"}


def test_a_required_failure_is_exit_code_1_and_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "diagnose", lambda: [Check("torch", False, "gone", "pip install torch")])
    assert report(as_json=False) == 1
    printed = capsys.readouterr().out
    assert "FAILED" in printed
    assert "pip install torch" in printed


def test_a_crash_of_a_simulator_is_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_GYMNASIUM", "import os; os.abort()")
    check = doctor._gymnasium()
    assert check.ok is False
    assert "pip install" in check.remedy


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(doctor, "version", missing)
    numpy, envpool = doctor._dependency("numpy"), doctor._envpool()
    assert (numpy.ok, numpy.remedy) == (False, "pip install numpy")
    assert envpool.ok is None, "Gymnasium can stand in for EnvPool"
    assert doctor._tensorboard().ok is None
    maniskill = doctor._maniskill()
    assert (maniskill.ok, maniskill.detail) == (None, "not installed")
    assert "detent[maniskill]" in maniskill.remedy


def test_a_missing_vulkan_driver_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda package: "3.0.1")
    monkeypatch.setattr(doctor, "_MANISKILL", "raise SystemExit('failed to find a rendering device')")
    check = doctor._maniskill()
    assert check.ok is None, "other simulators work without"
    assert check.detail == "3.0.1, SAPIEN cannot render: failed to find a rendering device"
    assert "mesa-vulkan-drivers" in check.remedy
    monkeypatch.setattr(doctor, "_MANISKILL", "print('SAPIEN rendered')")
    assert doctor._maniskill() == Check("ManiSkill", True, "3.0.1, SAPIEN rendered")


def test_missing_opengl_names_the_debian_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_OPENGL", "raise SystemExit('no OpenGL here')")
    check = doctor._opengl()
    assert check.ok is None, "training works without"
    assert check.detail == "no OpenGL here"
    assert "libegl1" in check.remedy
    assert "libosmesa6" in check.remedy


def test_an_opengl_library_other_than_the_preferred_is_recommended(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os; assert os.environ.get('MUJOCO_GL') == 'osmesa', 'no'; print('rendered')"
    monkeypatch.setattr(doctor, "_OPENGL", code)
    monkeypatch.setattr(doctor, "preferred_gl", lambda: "egl")
    check = doctor._opengl()
    assert check.ok is None
    assert check.remedy == "for videos, set MUJOCO_GL=osmesa"


def test_works_where_no_dependency_can_be_imported() -> None:
    code = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "numpy", "gymnasium", "rich", "tyro", "PIL"}:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Block())
from detent import doctor
doctor._run = lambda code, environment=None: (False, "blocked")
sys.exit(doctor.report(as_json=False))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert "pip install 'torch>=2.10'" in done.stdout
