import ctypes.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from detent import doctor
from detent.config import Config, EnvConfig
from detent.config.io import save_config
from detent.envs import gymnasium as gymnasium_envs
from detent.errors import ConfigError
from detent.models import checkpoints
from detent.training.video import RenderError, choose_gl, record, record_run


class Painter(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Paints step number t as brightness 10 t on 64 x 48 pixels; ends after `length` steps."""

    def __init__(self, length: int = 5, broken: str = "") -> None:
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 50}
        self.render_mode = "rgb_array"
        self.observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.length, self.broken, self.closed, self.t = length, broken, False, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.t += 1
        return np.zeros(1, np.float32), 0.0, self.t >= self.length, False, {}

    def render(self) -> Any:
        if self.t == 2 and self.broken == "late":
            raise KeyError("no such light")
        return None if self.broken == "nothing" else np.full((48, 64, 3), 10 * self.t, np.uint8)

    def close(self) -> None:
        self.closed = True


def read_mp4(path: Path) -> tuple[tuple[int, int], float, list[NDArray[np.uint8]]]:
    reader = imageio_ffmpeg.read_frames(str(path))
    meta = next(reader)
    width, height = meta["size"]
    return (width, height), meta["fps"], [np.frombuffer(f, np.uint8).reshape(height, width, 3) for f in reader]


def still(observation: Any) -> NDArray[np.float32]:
    return np.zeros(1, np.float32)


def test_films_hold_every_picture_of_every_episode(tmp_path: Path) -> None:
    mp4, gif = record(lambda: Painter(5), still, tmp_path / "new" / "film.step-10", episodes=2)
    assert (mp4.name, gif.name) == ("film.step-10.mp4", "film.step-10.gif")
    size, fps, frames = read_mp4(mp4)
    assert size == (64, 48)
    assert fps == 50
    # Two episodes of a first picture and five more, 10 brighter each time.
    assert [round(frame.mean() / 10) for frame in frames] == [0, 1, 2, 3, 4, 5] * 2
    with Image.open(gif) as picture:
        assert picture.size == (64, 48)
        assert getattr(picture, "n_frames", 1) == 6, "every second picture: 50 a second become 25"
    assert sorted(path.name for path in mp4.parent.iterdir()) == [gif.name, mp4.name]


def test_an_episode_is_cut_at_max_steps(tmp_path: Path) -> None:
    (mp4,) = record(lambda: Painter(100), still, tmp_path / "film", max_steps=3, fps=10, formats=["mp4"])
    _, fps, frames = read_mp4(mp4)
    assert (fps, len(frames)) == (10, 4)


def test_a_failed_film_leaves_nothing_and_keeps_the_one_before(tmp_path: Path) -> None:
    env = Painter(broken="late")
    (tmp_path / "film.mp4").write_text("the film before")
    with pytest.raises(RenderError, match=r"KeyError.*no such light"):
        record(lambda: env, still, tmp_path / "film")
    assert [path.name for path in tmp_path.iterdir()] == ["film.mp4"]
    assert (tmp_path / "film.mp4").read_text() == "the film before"
    assert env.closed


def test_an_environment_without_pictures_is_told_the_render_mode(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match=r"NoneType.*rgb_array"):
        record(lambda: Painter(broken="nothing"), still, tmp_path / "film")


def test_unknown_formats_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown video format avi; valid: mp4, gif"):
        record(Painter, still, tmp_path / "film", formats=["avi"])


@pytest.mark.parametrize(("episodes", "max_steps"), [(0, 1), (1, 0)])
def test_empty_films_are_refused(tmp_path: Path, episodes: int, max_steps: int) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        record(Painter, still, tmp_path / "film", episodes=episodes, max_steps=max_steps)


def test_a_run_is_filmed_on_its_own_task_by_its_own_policy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    played: list[tuple[Any, str]] = []

    def policy(observation: Any, readout: str, generator: torch.Generator) -> NDArray[np.float32]:
        played.append((observation, readout))
        return still(observation)

    def make_single(task: str, kwargs: dict[str, Any], render_mode: str) -> Painter:
        assert (task, kwargs, render_mode) == ("Painter-v0", {"length": 3}, "rgb_array")
        return Painter(**kwargs)

    config = Config(task="Painter-v0", env=EnvConfig(kwargs={"length": 3}))
    save_config(config, tmp_path / "config.toml")
    saved = (policy, SimpleNamespace(step=4096), config)
    monkeypatch.setattr(checkpoints, "load_policy", lambda run, which, trust: saved)
    monkeypatch.setattr(gymnasium_envs, "make_single", make_single)
    mp4, gif = record_run(tmp_path, readout="sample")
    assert (mp4, gif) == tuple(tmp_path / "videos" / f"step-4096-sample.{kind}" for kind in ("mp4", "gif"))
    assert [readout for _, readout in played] == ["sample"] * 3


def test_mujoco_is_rendered(tmp_path: Path) -> None:
    if doctor._opengl().ok is not True:
        pytest.skip("no OpenGL library on this machine")
    code = f"""
import gymnasium
from pathlib import Path
from detent.training.video import record
env = lambda: gymnasium.make("Hopper-v4", render_mode="rgb_array")
print(*record(env, lambda observation: [0, 0, 0], Path({str(tmp_path / "hopper")!r}), max_steps=8), sep="\\n")
"""
    # A process of its own: OpenGL contexts outlive an environment, and mujoco may be imported here already.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    mp4, gif = (Path(line) for line in done.stdout.split())
    size, _, frames = read_mp4(mp4)
    assert size == (480, 480)
    assert len(frames) == 9
    assert frames[0].std() > 10, "there is something to see"
    assert np.abs(frames[0].astype(int) - frames[-1]).max() > 20, "and it moves"
    with Image.open(gif) as picture:
        assert picture.size == (240, 240)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere OpenGL comes with the system")
@pytest.mark.parametrize("choice", [{}, {"MUJOCO_GL": "nonesuch"}], ids=["fails-to-render", "fails-to-import"])
def test_missing_opengl_is_a_sentence_that_names_the_packages(tmp_path: Path, choice: dict[str, str]) -> None:
    code = f"""
import gymnasium
from pathlib import Path
from detent.training.video import RenderError, record
try:
    env = lambda: gymnasium.make("Hopper-v4", render_mode="rgb_array")
    record(env, lambda observation: [0, 0, 0], Path({str(tmp_path / "hopper")!r}))
except RenderError as error:
    print(error)
"""
    # A machine without a screen where the loader finds no library.
    hide = "import ctypes.util; ctypes.util.find_library = lambda name: None\n"
    screens = ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY")
    environment = {key: value for key, value in os.environ.items() if key not in screens}
    done = subprocess.run(
        [sys.executable, "-c", hide + code],
        env=environment | choice,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "libegl1" in done.stdout, done.stderr
    assert "libosmesa6" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_cannot_be_made_keeps_its_own_error(tmp_path: Path) -> None:
    def make() -> Painter:
        raise LookupError("no paint")

    with pytest.raises(LookupError, match="no paint"):
        record(make, still, tmp_path / "film")


@pytest.mark.parametrize(
    ("libraries", "environment", "chosen"),
    [
        ({"EGL", "OSMesa"}, {}, "egl"),
        ({"OSMesa"}, {}, "osmesa"),
        (set(), {}, None),
        ({"EGL"}, {"DISPLAY": ":0"}, None),
        ({"EGL"}, {"MUJOCO_GL": "glfw"}, "glfw"),
    ],
)
def test_egl_comes_before_osmesa_and_the_user_before_both(
    monkeypatch: pytest.MonkeyPatch, libraries: set[str], environment: dict[str, str], chosen: str | None
) -> None:
    # A copy, because choose_gl itself sets the variable.
    plain = {key: value for key, value in os.environ.items() if key not in ("DISPLAY", "MUJOCO_GL")}
    monkeypatch.setattr(os, "environ", plain | environment)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: name if name in libraries else None)
    assert choose_gl() == chosen
    assert os.environ.get("MUJOCO_GL") == chosen
