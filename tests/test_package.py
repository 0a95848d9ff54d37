"""The wheel carries everything the package needs: built, installed outside the tree, used from elsewhere."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*command: str | Path, cwd: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # A copy, so that the build leaves nothing in the tree and takes nothing from an earlier build in it.
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", ".", cwd=source)
    (path,) = (source / "dist").glob("detent-*.whl")
    return path


def test_the_wheel_holds_every_source_and_data_file(wheel: Path) -> None:
    package = ROOT / "src" / "detent"
    files = {
        path.relative_to(ROOT / "src").as_posix()
        for path in package.rglob("*")
        if path.is_file() and path.suffix in {".py", ".toml", ".csv", ".typed", ".css", ".js"}
    }
    assert files - set(zipfile.ZipFile(wheel).namelist()) == set()


def test_the_citation_names_the_package_as_its_metadata_does() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    for line in (f"version: {project['version']}", f"license: {project['license']}"):
        assert line in lines
    assert [f"  - name: {author['name']}" for author in project["authors"]] == [
        line for line in lines if line.startswith("  - name:")
    ]
    assert [f"  - {word}" for word in project["keywords"]] == lines[lines.index("keywords:") + 1 :][:5]


def test_the_installed_command_works_outside_the_tree(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=tmp_path)
    scripts = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    # The dependencies are borrowed from here. A .pth file adds the directory only, not the .pth files in it, so the
    # editable install of the tree stays out.
    (site,) = (tmp_path / "venv").rglob("site-packages")
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (site / "borrowed.pth").write_text("\n".join(borrowed))

    located = run(python, "-c", "import detent; print(detent.__file__)", cwd=tmp_path)
    assert Path(located.strip()).is_relative_to(site)
    listed = run(scripts / "detent", "list", "tasks", cwd=tmp_path)
    assert "HalfCheetah-v4" in listed
