"""Open registries: heads, trunks, encoders, critics, losses, update rules, simulators and loggers by name.

A name is looked up among the built-in entries, then among those a program registered by decorator, then among the
entry points of installed packages; `package.module:Name` is imported. Nothing is imported before it is used.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from detent.config.io import override
from detent.errors import ConfigError, nearest

Entry = TypeVar("Entry")


def import_path(path: str, what: str) -> Any:
    """Import `package.module:Name`; `what` begins the error sentence if the import fails."""
    module_name, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except ConfigError:
        # Already a sentence, about a package that the module needs.
        raise
    except Exception as error:
        raise ConfigError(f"{what} '{path}' cannot be imported: {type(error).__name__}: {error}") from error
    return found


@cache
def _installed(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of installed packages, cached because they do not change while a program runs."""
    return {point.name: point for point in entry_points(group=group)}


class Registry:
    """The plug-ins of one kind."""

    def __init__(
        self, kind: str, group: str, builtin: Mapping[str, str], base: str = "", reserved: Sequence[str] = ()
    ) -> None:
        """Take the entry-point `group`, the `builtin` names with import paths, and the class that entries subclass."""
        self.kind, self.group = kind, group
        self._builtin, self._base = dict(builtin), base
        self._reserved = (*builtin, *reserved)
        self._registered: dict[str, Any] = {}
        self._providers: dict[str, str] = {}

    def register(self, name: str) -> Callable[[Entry], Entry]:
        """Return a decorator that registers a class under `name`."""
        # A program is found again by the module that registers, which may not be the one that defines the class.
        provider = str(sys._getframe(1).f_globals.get("__name__", "__main__"))

        def enter(entry: Entry) -> Entry:
            if not name or ":" in name:
                raise ConfigError(f"'{name}' is not a valid name for a {self.kind}; a colon is for import paths")
            if name in self._reserved:
                raise ConfigError(f"'{name}' is a built-in {self.kind}; choose another name")
            self._require_fitting(name, entry)
            self._registered[name] = entry
            self._providers[name] = provider
            return entry

        return enter

    def _entry_points(self) -> dict[str, EntryPoint]:
        return _installed(self.group)

    def names(self) -> list[str]:
        """Return every name that can be used without an import path, importing nothing."""
        return list(dict.fromkeys((*self._builtin, *self._registered, *self._entry_points())))

    def is_builtin(self, name: str) -> bool:
        """Return whether `name` comes with Detent."""
        return name in self._builtin

    def known(self, name: str) -> bool:
        """Return whether `name` is registered; an import path is not."""
        return name in self._builtin or name in self._registered or name in self._entry_points()

    def require(self, name: str, setting: str) -> None:
        """Reject a name that is neither registered nor an import path."""
        if not self.known(name) and ":" not in name:
            raise ConfigError(
                f"{setting} is '{name}', and there is no {self.kind} of that name; {nearest(name, self.names())} "
                "(for your own, use package.module:Name, or register it in a module given with --plugins)"
            )

    def provider(self, name: str) -> str | None:
        """Return the module that registered `name` by decorator; None for names found without it."""
        return self._providers.get(name) if name in self._registered else None

    def get(self, name: str) -> Any:
        """Return the entry `name`, importing it if necessary."""
        self.require(name, self.kind)
        if name in self._builtin:
            return import_path(self._builtin[name], self.kind)
        if name in self._registered:
            return self._registered[name]
        points = self._entry_points()
        if name in points:
            entry = import_path(points[name].value, f"{self.kind} '{name}' of an installed package,")
        else:
            entry = import_path(name, self.kind)
        self._require_fitting(name, entry)
        return entry

    def _require_fitting(self, name: str, entry: Any) -> None:
        if not callable(entry):
            raise ConfigError(f"{self.kind} '{name}' is {entry!r}, which is not callable")
        if self._base:
            base = import_path(self._base, "the base class")
            if not (isinstance(entry, type) and issubclass(entry, base)):
                raise ConfigError(f"{self.kind} '{name}' is {entry!r}; it must subclass detent.{base.__name__}")

    def describe(self) -> dict[str, str]:
        """Return the first line of every entry's docstring by name, or the error if the entry cannot be imported."""
        return {name: self._first_line(name) for name in self.names()}

    def _first_line(self, name: str) -> str:
        try:
            return (self.get(name).__doc__ or "").strip().partition("\n")[0]
        except ConfigError as error:
            return str(error)

    def options(self, name: str, options: Mapping[str, Any], setting: str) -> Any | None:
        """Return the options of `name` as its `Options` dataclass; None if it takes none."""
        schema = getattr(self.get(name), "Options", None)
        if schema is None:
            if options:
                raise ConfigError(f"{setting} has {', '.join(options)}; {self.kind} '{name}' takes no options")
            return None
        if not (isinstance(schema, type) and is_dataclass(schema)):
            raise ConfigError(f"Options of {self.kind} '{name}' must be a dataclass (@dataclass(frozen=True))")
        try:
            defaults = schema()
        except TypeError as error:
            raise ConfigError(f"every option of {self.kind} '{name}' needs a default: {error}") from None
        return override(defaults, options, f"{setting}.")

    def make(self, name: str, *arguments: Any, options: Mapping[str, Any], setting: str) -> Any:
        """Construct `name` with `arguments`, followed by its checked options if it takes any."""
        checked = self.options(name, options, setting)
        return self.get(name)(*arguments) if checked is None else self.get(name)(*arguments, checked)


@dataclass(frozen=True)
class Reference:
    """A plug-in that a configuration names."""

    registry: Registry
    name: str
    setting: str
    """The setting that names the plug-in, for instance `head.kind`."""
    options: Mapping[str, Any]
    options_setting: str = ""

    def check(self) -> None:
        """Reject an unknown name and options that the plug-in does not have."""
        self.registry.require(self.name, self.setting)
        # A built-in entry without options is valid, and need not be imported for the check.
        if self.options or not self.registry.is_builtin(self.name):
            self.registry.options(self.name, self.options, self.options_setting)


def import_plugins(modules: Sequence[str]) -> None:
    """Import the modules whose decorators register plug-ins."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            raise ConfigError(
                f"the plug-in module '{module}' cannot be imported: {type(error).__name__}: {error}"
            ) from error


def providers(references: Iterable[Reference]) -> list[str]:
    """Return the importable modules that registered the plug-ins of a configuration by decorator."""
    found = (reference.registry.provider(reference.name) for reference in references)
    return list(dict.fromkeys(module for module in found if module and module != "__main__"))


def allow_imports(
    references: Iterable[Reference], plugins: Sequence[str], run: Path, trust: bool, paths: Sequence[str] = ()
) -> None:
    """Refuse to import what a run's files name, plug-ins and further import `paths`, unless the user trusts them.

    A stranger's run must not run code. What is already registered, here or by an installed package, needs no trust.
    With `trust`, the plug-in modules of the run are imported.
    """
    if trust:
        return import_plugins(plugins)
    references = list(references)
    # Also paths into Detent itself: they lead to everything that its modules import.
    needed = [name for name in (*(reference.name for reference in references), *paths) if ":" in name]
    if not all(reference.registry.known(reference.name) or ":" in reference.name for reference in references):
        needed += plugins
    if needed:
        raise ConfigError(
            f"{run} refers to {', '.join(dict.fromkeys(needed))}, and importing that runs its code; if you trust it, "
            "pass --trust (trust=True in Python)"
        )
