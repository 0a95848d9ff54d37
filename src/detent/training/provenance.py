"""Where a run's results come from: the code of this package and the processor it ran on."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib import metadata
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_CODE = {".py", ".toml", ".csv", ".js", ".css"}


def provenance(package: Path = _PACKAGE) -> dict[str, str]:
    """Return `version`, `commit` (in a git checkout), `package_sha256` and `cpu`, without those that are unknown.

    The commit alone does not identify code that was edited since; the hash over the package's files does.
    """
    found = {
        "version": _version(),
        "commit": _commit(package),
        "package_sha256": package_hash(package),
        "cpu": cpu_model(),
    }
    return {name: value for name, value in found.items() if value}


def _version() -> str:
    try:
        return metadata.version("detent")
    except metadata.PackageNotFoundError:
        return ""


@cache
def package_hash(package: Path = _PACKAGE) -> str:
    """Return the SHA-256 of the names and contents of a package's files, in order; empty if one cannot be read."""
    digest = hashlib.sha256()
    try:
        for path in sorted(path for path in package.rglob("*") if path.suffix in _CODE and path.is_file()):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(package).as_posix()}\0{len(content)}\0".encode() + content)
    except OSError:
        return ""
    return digest.hexdigest()


def _commit(package: Path) -> str:
    """Return the commit of the checkout that contains `src/detent`; empty if it is installed from elsewhere."""
    checkout = package.parents[1]
    # A package installed below somebody else's checkout, in a virtual environment, is not part of it.
    if package.parent.name != "src" or not (checkout / "pyproject.toml").is_file():
        return ""
    try:
        return _head(checkout / ".git")
    except (OSError, ValueError):
        return ""


def _head(git: Path) -> str:
    """Return the commit that HEAD points to; a worktree's `.git` is a file that names its directory."""
    if git.is_file():
        git = git.parent / git.read_text().removeprefix("gitdir:").strip()
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return head
    name = head.removeprefix("ref:").strip()
    shared = git / "commondir"
    roots = [git, git / shared.read_text().strip()] if shared.is_file() else [git]
    for root in roots:
        if (root / name).is_file():
            return (root / name).read_text().strip()
        if (root / "packed-refs").is_file():
            for line in (root / "packed-refs").read_text().splitlines():
                commit, _, packed = line.partition(" ")
                if packed == name:
                    return commit
    return ""


def cpu_model() -> str:
    """Return the processor's name; empty if the system does not tell."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except (OSError, UnicodeDecodeError):
        pass
    return platform.processor()
