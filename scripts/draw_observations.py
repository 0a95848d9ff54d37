"""Draw what an image-based policy sees over an episode, as eight frames in a row.

python scripts/draw_observations.py RUN OUT.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from detent.envs import make_eval_envs
from detent.models.checkpoints import load_policy

MOMENTS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    policy, _, config = load_policy(given.run, "latest")
    envs = make_eval_envs(config.task, config.env, 1, 1)
    observation = envs.reset(0)
    seen = [observation["rgb"][0, :, :, :3].numpy()]
    limit = envs.spec.max_episode_steps or 50
    # The step that ends the episode returns the first observation of the next.
    for _ in range(limit - 1):
        observation = envs.step(policy(observation)).observation
        seen.append(observation["rgb"][0, :, :, :3].numpy())
    envs.close()
    chosen = np.linspace(0, len(seen) - 1, MOMENTS).round().astype(int)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.concatenate([seen[i] for i in chosen], axis=1)).save(given.out)


if __name__ == "__main__":
    main()
