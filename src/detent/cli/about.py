"""Commands that list what is available (tasks, variants, presets, studies, plug-ins) and check this machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from tyro.conf import Positional

from detent.config.presets import PRESETS, table
from detent.registry import import_plugins

TABLES = ("tasks", "variants", "presets", "studies")
PLUGINS = ("heads", "trunks", "encoders", "critics", "losses", "update-rules", "simulators", "loggers", "callbacks")


@dataclass(frozen=True)
class List:
    """List what is available: tasks, variants, presets, studies, and plug-ins of each kind."""

    what: Positional[
        Literal[
            "all",
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
            "callbacks",
        ]
    ] = "all"
    """What to list; all: tasks, variants, presets, studies, and the kinds of plug-ins."""
    plugins: tuple[str, ...] = ()
    """Modules to import first, whose decorators register plug-ins."""
    json: bool = False
    """Print one line of JSON."""

    def run(self) -> int:
        import_plugins(self.plugins)
        if self.what == "all":
            self._list_all()
        elif self.json:
            print(json.dumps(_entries(self.what)))
        else:
            _print_entries(self.what)
        return 0

    def _list_all(self) -> None:
        if self.json:
            print(json.dumps({table: _entries(table) for table in TABLES} | {"plugins": PLUGINS}))
            return
        for name in TABLES:
            print(f"{name.capitalize()}:")
            _print_entries(name)
            print()
        print(f"Plug-ins, by detent list KIND: {', '.join(PLUGINS)}")


def _print_entries(what: str) -> None:
    entries = _entries(what)
    if not entries:
        print(f"none; package.module:Name gives one of your own, --plugins a module that registers {what}")
        return
    width = max(map(len, entries))
    for name, description in entries.items():
        print(f"{name:{width}}  {description}")
    if what == "tasks":
        print("and any other Gymnasium id with a Box action space, also package.module:EnvId-v0;")
        print("any other ManiSkill id with --env.backend physx_cpu or physx_cuda")


def _entries(what: str) -> dict[str, str]:
    """Return the names to list and their descriptions."""
    if what == "studies":
        from detent.study.plan import shipped

        return shipped()
    if what in PLUGINS:
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
