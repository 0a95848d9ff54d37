from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from detent.training.provenance import cpu_model, package_hash, provenance

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def make_package(checkout: Path) -> Path:
    package = checkout / "src" / "detent"
    package.mkdir(parents=True)
    (package / "a.py").write_text("x = 1\n")
    (checkout / "pyproject.toml").touch()
    return package


def make_git(checkout: Path, head: str) -> Path:
    git = checkout / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text(head)
    return git


def test_the_commit_is_the_one_git_names(tmp_path: Path) -> None:
    package = make_package(tmp_path)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "core.hooksPath="]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "one"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, timeout=60)
    named = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60
    )
    assert provenance(package)["commit"] == named.stdout.strip()
    subprocess.run(["git", "pack-refs", "--all"], cwd=tmp_path, check=True, timeout=60)
    assert provenance(package)["commit"] == named.stdout.strip(), "packed"
    subprocess.run(["git", "worktree", "add", "-q", "other"], cwd=tmp_path, check=True, timeout=60)
    assert provenance(tmp_path / "other" / "src" / "detent")["commit"] == named.stdout.strip(), "in a worktree"


def test_a_detached_head_is_the_commit_itself(tmp_path: Path) -> None:
    package = make_package(tmp_path)
    make_git(tmp_path, f"{COMMIT}\n")
    assert provenance(package)["commit"] == COMMIT


@pytest.mark.parametrize("head", ["ref: refs/heads/none\n", ""])
def test_an_unborn_branch_or_an_empty_head_is_no_commit(head: str, tmp_path: Path) -> None:
    package = make_package(tmp_path)
    make_git(tmp_path, head)
    assert "commit" not in provenance(package)


def test_a_package_in_an_environment_below_a_checkout_is_not_part_of_it(tmp_path: Path) -> None:
    make_git(tmp_path, COMMIT)
    (tmp_path / "pyproject.toml").touch()
    package = tmp_path / ".venv" / "lib" / "site-packages" / "detent"
    package.mkdir(parents=True)
    assert "commit" not in provenance(package)


def test_the_hash_is_over_names_and_contents_of_the_code(tmp_path: Path) -> None:
    package = make_package(tmp_path)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "a.pyc").write_bytes(b"compiled")
    assert package_hash(package) == hashlib.sha256(b"a.py\x006\x00x = 1\n").hexdigest()
    package_hash.cache_clear()
    (package / "a.py").rename(package / "b.py")
    assert package_hash(package) == hashlib.sha256(b"b.py\x006\x00x = 1\n").hexdigest()


def test_nothing_that_is_missing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> str:
        raise OSError("no such file")

    package = make_package(tmp_path)
    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    monkeypatch.setattr("detent.training.provenance.platform.processor", lambda: "")
    monkeypatch.setattr("detent.training.provenance._version", lambda: "")
    assert provenance(package) == {}


def test_this_package_has_a_version_a_hash_and_a_processor() -> None:
    found = provenance()
    assert len(found["package_sha256"]) == 64
    assert found["version"]
    assert found.get("cpu", "") == cpu_model()
