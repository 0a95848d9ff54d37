"""Checks of what works on this machine, and what to install for what does not.

Everything that could crash an interpreter (torch, simulators, OpenGL) is tried in a separate process, and the report
itself needs only the standard library.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

from detent.threads import usable_cores
from detent.training.video import GL_PACKAGES, preferred_gl

VULKAN = (
    "install a Vulkan driver: the package mesa-vulkan-drivers, Mesa 23 or newer, on Debian or Ubuntu "
    "(`make maniskill` does it), or the GPU vendor's"
)
_SECONDS = 120
_DEPENDENCIES = (
    "numpy",
    "gymnasium",
    "mujoco",
    "tyro",
    "rich",
    "safetensors",
    "tomli-w",
    "matplotlib",
    "imageio-ffmpeg",
    "pillow",
)

_TORCH = """
import torch
gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
print(torch.__version__, torch.get_num_threads(), ", ".join(gpus), sep="|")
"""
_GYMNASIUM = """
import warnings
warnings.simplefilter("ignore")
import gymnasium
env = gymnasium.make("Hopper-v4")
env.reset(seed=0)
env.step(env.action_space.sample())
print("stepped Hopper-v4")
"""
_ENVPOOL = """
import envpool, numpy
env = envpool.make("Hopper-v4", env_type="gymnasium", num_envs=2, seed=0)
env.reset()
env.step(numpy.zeros((2, 3)))
print("stepped 2 x Hopper-v4")
"""
_OPENGL = """
import warnings
warnings.simplefilter("ignore")
import gymnasium
env = gymnasium.make("Hopper-v4", render_mode="rgb_array")
env.reset(seed=0)
frame = env.render()
assert frame.std() > 0, "the picture is of one colour"
print(f"rendered {frame.shape[1]} x {frame.shape[0]}")
"""
_MANISKILL = """
import sapien
sapien.render.set_camera_shader_dir("minimal")
scene = sapien.Scene([sapien.physx.PhysxCpuSystem(), sapien.render.RenderSystem(sapien.Device("cpu"))])
scene.set_ambient_light([0.5, 0.5, 0.5])
box = scene.create_actor_builder()
box.add_box_visual(half_size=[0.2, 0.2, 0.2], material=[1.0, 0.0, 0.0])
box.set_initial_pose(sapien.Pose([2, 0, 0]))
box.build_static()
camera = scene.add_camera("camera", 64, 48, 1.0, 0.01, 100)
scene.update_render()
camera.take_picture()
picture = camera.get_picture("Color")
assert picture[..., :3].std() > 0, "the picture is of one colour"
print(f"SAPIEN {sapien.__version__} rendered {picture.shape[1]} x {picture.shape[0]}")
"""
_TENSORBOARD = """
import tensorboard
from torch.utils.tensorboard import SummaryWriter
print(tensorboard.__version__)
"""


@dataclass(frozen=True)
class Check:
    name: str
    ok: bool | None
    """None if absent but not required for training."""
    detail: str
    remedy: str = ""


def diagnose() -> list[Check]:
    """Check everything, which takes a while; say on stderr what is being checked."""
    _say("torch")
    checks = [_python(), *_torch(), Check("cores", True, _cores())]
    checks += [_dependency(name) for name in _DEPENDENCIES]
    programs = {
        "Gymnasium": _gymnasium,
        "EnvPool": _envpool,
        "OpenGL": _opengl,
        "ManiSkill": _maniskill,
        "tensorboard": _tensorboard,
    }
    for name, check in programs.items():
        _say(name)
        checks.append(check())
    return checks


def _say(name: str) -> None:
    print(f"checking {name} ...", file=sys.stderr, flush=True)


def report(as_json: bool) -> int:
    """Print the checks as one line of JSON or as a table; return 0 if everything required works, else 1."""
    checks = diagnose()
    healthy = all(check.ok is not False for check in checks)
    if as_json:
        print(json.dumps({"ok": healthy, "checks": [asdict(check) for check in checks]}))
    else:
        _print_table(checks)
        print("Everything required works." if healthy else "Something required does not work; see above.")
    return 0 if healthy else 1


def _print_table(checks: list[Check]) -> None:
    words = {True: "ok", None: "-", False: "FAILED"}
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        for check in checks:
            print(f"{words[check.ok]:8}{check.name:20}{check.detail}{check.remedy and '; '}{check.remedy}")
        return
    colours = {True: "green", None: "yellow", False: "bold red"}
    table = Table("", "what", "found", "to do", show_lines=False)
    for check in checks:
        mark = Text(words[check.ok], style=colours[check.ok])
        table.add_row(mark, check.name, Text(check.detail), Text(check.remedy))
    Console().print(table)


def _python() -> Check:
    return Check(
        "python",
        sys.version_info >= (3, 11),
        f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "" if sys.version_info >= (3, 11) else "use Python 3.11 or newer",
    )


def _cores() -> str:
    # A container or taskset may grant fewer cores than the machine has.
    return f"{usable_cores()} usable of {os.cpu_count()}"


def _torch() -> list[Check]:
    works, text = _run(_TORCH)
    if not works:
        return [Check("torch", False, text, "pip install 'torch>=2.10'")]
    found, threads, gpus = text.split("|")
    major, minor = (int(part) for part in found.split(".")[:2])
    new_enough = (major, minor) >= (2, 10)
    return [
        Check("torch", new_enough, found, "" if new_enough else "pip install --upgrade 'torch>=2.10'"),
        Check("threads", True, f"{threads} unless --threads says otherwise"),
        Check("gpu", True if gpus else None, gpus or "none that torch can use; training runs on the CPU"),
    ]


def _dependency(name: str) -> Check:
    found = _version(name)
    return Check(name, found is not None, found or "not installed", "" if found else f"pip install {name}")


def _gymnasium() -> Check:
    works, text = _run(_GYMNASIUM)
    return Check("Gymnasium MuJoCo", works, text, "" if works else "pip install 'gymnasium[mujoco]>=1.1'")


def _envpool() -> Check:
    found = _version("envpool")
    if found is None:
        remedy = "pip install 'envpool>=1.2'" if _envpool_has_a_wheel() else ""
        return Check("EnvPool", None, "not installed; Gymnasium is used instead, which is slower", remedy)
    works, text = _run(_ENVPOOL)
    if works:
        return Check("EnvPool", True, f"{found}, {text}")
    return Check("EnvPool", False, f"{found}: {text}", "reinstall it, or train with --env.backend gymnasium")


def _envpool_has_a_wheel() -> bool:
    return sys.platform != "darwin" or platform.machine() == "arm64"


def _opengl() -> Check:
    """Try the MUJOCO_GL backend that `detent video` would use, then those the user could choose instead."""
    preferred = preferred_gl()
    text = ""
    for name in dict.fromkeys((preferred, None, "egl", "osmesa")):
        works, found = _run(_OPENGL, {"MUJOCO_GL": name} if name else {"MUJOCO_GL": None})
        if works:
            detail = f"{found} with MUJOCO_GL {'unset' if name is None else f'= {name}'}"
            remedy = (
                "" if name == preferred else f"for videos, {f'set MUJOCO_GL={name}' if name else 'unset MUJOCO_GL'}"
            )
            return Check("OpenGL", True if name == preferred else None, detail, remedy)
        text = text or found
    return Check("OpenGL", None, text, f"for videos, {GL_PACKAGES}")


def _maniskill() -> Check:
    """Check that SAPIEN renders: its simulator needs a Vulkan driver whatever the policy observes."""
    found = _version("mani_skill")
    if found is None:
        return Check("ManiSkill", None, "not installed", "for manipulation tasks, pip install 'detent[maniskill]'")
    works, text = _run(_MANISKILL, {"LP_NUM_THREADS": "0"})
    if works:
        return Check("ManiSkill", True, f"{found}, {text}")
    return Check("ManiSkill", None, f"{found}, SAPIEN cannot render: {text}", f"for manipulation tasks, {VULKAN}")


def _tensorboard() -> Check:
    found = _version("tensorboard")
    works, text = _run(_TENSORBOARD) if found else (False, "not installed")
    remedy = "" if works else "pip install tensorboard, for --tensorboard"
    return Check("tensorboard", True if works else None, text, remedy)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _run(code: str, environment: Mapping[str, str | None] | None = None) -> tuple[bool, str]:
    """Run `code` in a fresh interpreter; return whether it succeeded and the last line it printed."""
    env: dict[str, str] = dict(os.environ)
    for key, value in (environment or {}).items():
        if value is None:
            env.pop(key, None)
        else:
            env[key] = value
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"gave no answer within {_SECONDS} s"
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if lines:
        return done.returncode == 0, lines[-1]
    return done.returncode == 0, f"the process ended with exit code {done.returncode}"
