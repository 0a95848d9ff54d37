"""Commands that list what is available (tasks, variants, presets, studies, plug-ins) and check this machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from tyro.conf import Positional

from detent.config.presets import PRESETS, table


@dataclass(frozen=True)
class List:
    """List what is available: tasks, variants, presets, studies, and plug-ins of each kind."""

    what: Positional[
        Literal[
            "tasks",
            "variants",
            "presets",
            "studies",
            "heads",
            "trunks",
            "encoders",
            "critics",
            "losses",
            "update-rules",
            "simulators",
            "loggers",
        ]
    ]
    """What to list."""
    json: bool = False
    """Print one line of JSON."""

    def run(self) -> int:
        entries = _entries(self.what)
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


def _entries(what: str) -> dict[str, str]:
    """Return the names to list and their descriptions."""
    if what == "studies":
        from detent.study.plan import shipped

        return shipped()
    if what not in ("tasks", "variants", "presets"):
        from detent.plugins import REGISTRIES

        return REGISTRIES[what].describe()
    contents = {name: table(name) for name in PRESETS} if what == "presets" else table(what)
    return {name: str(content["description"]) for name, content in contents.items()}


@dataclass(frozen=True)
class Doctor:
    """Check this machine: versions, cores, GPU, which simulators work, and what to install for the others."""

    json: bool = False
    """Print one line of JSON."""

    def run(self) -> int:
        from detent import doctor

        return doctor.report(self.json)
