"""Commands that tell what there is: tasks, variants, presets, and what works on this machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from tyro.conf import Positional

from detent.presets import PRESETS, table


@dataclass(frozen=True)
class List:
    """Show what there is: tasks, variants or presets."""

    what: Positional[Literal["tasks", "variants", "presets"]]
    """Which table."""
    json: bool = False
    """Print one line of JSON."""

    def run(self) -> int:
        entries = {
            name: _describe(self.what, name) for name in (PRESETS if self.what == "presets" else table(self.what))
        }
        if self.json:
            print(json.dumps(entries))
            return 0
        width = max(map(len, entries))
        for name, description in entries.items():
            print(f"{name:{width}}  {description}")
        if self.what == "tasks":
            print("and any other Gymnasium id with a Box action space, also package.module:EnvId-v0;")
            print("any other ManiSkill id with --env.backend physx_cpu or physx_cuda")
        return 0


def _describe(what: str, name: str) -> str:
    contents = table(name) if what == "presets" else table(what)[name]
    return str(contents["description"])


@dataclass(frozen=True)
class Doctor:
    """Check this machine: versions, cores, GPU, which simulators work, and what to install for those that do not."""

    json: bool = False
    """Print one line of JSON."""

    def run(self) -> int:
        from detent import doctor

        return doctor.report(self.json)
