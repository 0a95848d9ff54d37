"""Videos of a policy: mp4 through ffmpeg, gif through Pillow.

Nothing heavy is imported before a video is recorded, so that `choose_gl` can be called first.
"""

from __future__ import annotations

import ctypes.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gymnasium
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image as Picture

    from detent.config import Readout

    Frame = NDArray[np.uint8]
    """`[height, width, 3]`."""

GL_PACKAGES = "install the packages libegl1 and libgl1 (or libosmesa6) on Debian or Ubuntu"

_GIF_SIZE = 240
# Browsers play a gif of more than 50 frames per second at only 10; 25 also halves the file.
_GIF_FPS = 25


class RenderError(RuntimeError):
    """Rendering failed; the message says why and what to install."""


def preferred_gl() -> str | None:
    """Return the OpenGL library for rendering without a display; None leaves the choice to MuJoCo."""
    if "MUJOCO_GL" in os.environ:
        return os.environ["MUJOCO_GL"]
    if sys.platform != "linux" or "DISPLAY" in os.environ:
        return None
    for name, library in (("egl", "EGL"), ("osmesa", "OSMesa")):
        if ctypes.util.find_library(library):
            return name
    return None


def choose_gl() -> str | None:
    """Set MUJOCO_GL if there is no display and the user has not set it; call this before importing mujoco."""
    name = preferred_gl()
    if name is not None:
        os.environ["MUJOCO_GL"] = name
    return name


def record(
    make_env: Callable[[], gymnasium.Env[Any, Any]],
    act: Callable[[Any], Any],
    path_stem: Path,
    episodes: int = 1,
    max_steps: int = 1000,
    fps: float | None = None,
    seed: int = 0,
    formats: Sequence[str] = ("mp4", "gif"),
) -> list[Path]:
    """Record `episodes` in sequence, each cut at `max_steps`, to one video per format; return the paths written.

    `make_env` makes the environment with `render_mode="rgb_array"`. An episode of n steps gives n + 1 frames. `fps`
    defaults to the environment's own rate; a gif drops frames above 25 per second and is at most 240 pixels wide or
    high.
    """
    from detent.errors import ConfigError

    unknown = sorted(set(formats) - set(_WRITERS))
    if unknown:
        raise ConfigError(f"unknown video format {', '.join(unknown)}; valid: {', '.join(_WRITERS)}")
    if episodes < 1 or max_steps < 1:
        raise ConfigError(f"a video of {episodes} episodes and {max_steps} steps is empty; both must be at least 1")
    choose_gl()
    env = _make(make_env)
    try:
        rate = float(fps or env.metadata.get("render_fps") or 30)
        frames = _play(env, act, episodes, max_steps, seed)
        first = next(frames)
        path_stem.parent.mkdir(parents=True, exist_ok=True)
        paths = [path_stem.with_name(f"{path_stem.name}.{name}") for name in formats]
        with ExitStack() as stack:
            writers = [
                stack.enter_context(_WRITERS[name](path, first, rate))
                for name, path in zip(formats, paths, strict=True)
            ]
            for frame in chain([first], frames):
                for write in writers:
                    write(frame)
    finally:
        env.close()
    return paths


def record_run(
    run: Path,
    checkpoint: str = "best",
    stem: Path | None = None,
    episodes: int = 1,
    max_steps: int = 1000,
    readout: Readout | None = None,
    seed: int = 0,
    trust: bool = False,
) -> list[Path]:
    """Record a video of a run's policy on its own task; `stem` defaults to `RUN/videos/step-<step>`, with
    the readout if one is given."""
    import torch

    from detent.config.io import read_run_config
    from detent.envs import make_rendering_env
    from detent.models.checkpoints import load_policy
    from detent.seeding import derive_seed
    from detent.training.plugins import require_trust

    require_trust(read_run_config(run), run, trust, training=False)
    policy, state, config = load_policy(run, checkpoint, trust=trust)
    generator = torch.Generator().manual_seed(derive_seed(seed, "video"))
    return record(
        lambda: make_rendering_env(config.task, config.env),
        lambda observation: policy(observation, readout, generator),
        stem or run / "videos" / (f"step-{state.step}" if readout is None else f"step-{state.step}-{readout}"),
        episodes=episodes,
        max_steps=max_steps,
        seed=seed,
    )


def _play(
    env: gymnasium.Env[Any, Any], act: Callable[[Any], Any], episodes: int, max_steps: int, seed: int
) -> Iterator[Frame]:
    for episode in range(episodes):
        observation, _ = env.reset(seed=seed if episode == 0 else None)
        yield _render(env)
        for _ in range(max_steps):
            observation, _, terminated, truncated, _ = env.step(act(observation))
            yield _render(env)
            if terminated or truncated:
                break


def _make(make_env: Callable[[], gymnasium.Env[Any, Any]]) -> gymnasium.Env[Any, Any]:
    try:
        return make_env()
    except Exception:
        # On import, mujoco loads the library that MUJOCO_GL names.
        try:
            import_module("mujoco")
        except Exception as error:
            raise _no_opengl(error) from error
        raise


def _no_opengl(error: Exception) -> RenderError:
    if type(error).__name__ == "DependencyNotInstalled":
        # Gymnasium's own error, which names the package.
        return RenderError(f"the environment could not be rendered: {error}")
    return RenderError(
        f"the environment could not be rendered ({type(error).__name__}: {error}); MUJOCO_GL is "
        f"{os.environ.get('MUJOCO_GL', 'unset')}. For OpenGL without a screen {GL_PACKAGES}; "
        "`detent doctor` checks whether it works"
    )


def _render(env: gymnasium.Env[Any, Any]) -> Frame:
    import numpy as np

    from detent.errors import ConfigError

    try:
        frame: Any = env.render()
    except NotImplementedError:
        name = type(env.unwrapped).__name__
        raise ConfigError(f"{name} renders no pictures: it has no render() that returns [height, width, 3]") from None
    except Exception as error:  # MuJoCo, PyOpenGL, glfw and Gymnasium each raise their own
        raise _no_opengl(error) from error
    if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[-1] != 3:
        raise RenderError(
            f"the environment rendered {type(frame).__name__} instead of a picture [height, width, 3]; "
            'make it with render_mode="rgb_array"'
        )
    return np.ascontiguousarray(frame, dtype=np.uint8)


@contextmanager
def _atomic(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` that replaces `path` on success and is removed on failure."""
    partial = path.with_name(f".partial-{os.getpid()}-{path.name}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _mp4(path: Path, first: Frame, fps: float) -> Iterator[Callable[[Frame], None]]:
    import imageio_ffmpeg

    height, width, _ = first.shape
    with _atomic(path) as partial:
        # The usual yuv420p needs even sizes; ffmpeg rescales odd ones.
        ffmpeg = imageio_ffmpeg.write_frames(
            str(partial), (width, height), fps=fps, macro_block_size=2, ffmpeg_log_level="error"
        )
        try:
            ffmpeg.send(None)
            yield lambda frame: ffmpeg.send(frame.tobytes())
        finally:
            ffmpeg.close()


@contextmanager
def _gif(path: Path, first: Frame, fps: float) -> Iterator[Callable[[Frame], None]]:
    from PIL import Image

    every = max(1, round(fps / _GIF_FPS))
    shrink = min(1.0, _GIF_SIZE / max(first.shape))
    size = (round(first.shape[1] * shrink), round(first.shape[0] * shrink))
    kept: list[Picture] = []
    seen = 0

    def write(frame: Frame) -> None:
        nonlocal seen
        if seen % every == 0:
            picture = Image.fromarray(frame).resize(size, Image.Resampling.BILINEAR)
            kept.append(picture.quantize(128))
        seen += 1

    with _atomic(path) as partial:
        yield write
        kept[0].save(
            partial, format="GIF", save_all=True, append_images=kept[1:], duration=round(1000 * every / fps), loop=0
        )


_WRITERS: dict[str, Callable[[Path, Frame, float], AbstractContextManager[Callable[[Frame], None]]]] = {
    "mp4": _mp4,
    "gif": _gif,
}
