"""`detent report` leaves one self-contained page with figures and tables beside it, whatever state the runs are in."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from detent.cli import main
from detent.errors import ConfigError
from detent.report import load, write_report

Make = Callable[..., Path]

REPOSITORY = Path(__file__).parents[2]


class Loaded(HTMLParser):
    """What a page would load, and whether its tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "link", "img", "br", "i"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "i":
            assert self.open.pop() == tag


def check_page(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    parser = Loaded()
    parser.feed(text)
    assert parser.open == []
    for address in parser.addresses:
        assert address.startswith(("#", "data:", "figures/", "tables/"))
        if address.startswith(("figures/", "tables/")):
            assert (path.parent / address).is_file()
    assert "url(" not in text
    assert "@import" not in text
    return text


def test_the_committed_runs_make_a_complete_report(tmp_path: Path) -> None:
    results = [REPOSITORY / "results" / name for name in ("gym-1m", "hc-1m")]
    assert main(["report", *map(str, results), "--out", str(tmp_path / "report")]) == 0
    text = check_page(tmp_path / "report" / "index.html")
    assert "Every group has one seed" in text
    names = {
        "aggregate-ppo",
        "tasks-ppo",
        "tasks-spo",
        "wall-clock",
        "improvement",
        "profiles",
        "components",
        "gradient-variance",
    }
    for name in names:
        with Image.open(tmp_path / "report" / "figures" / f"{name}.png") as picture:
            assert picture.width > 500
        assert ElementTree.parse(tmp_path / "report" / "figures" / f"{name}.svg").getroot().tag.endswith("svg")
    with (tmp_path / "report" / "tables" / "scores.csv").open() as file:
        rows = {(row["algo"], row["task"], row["group"]): row for row in csv.DictReader(file)}
    # Last rows of evals.jsonl, as in results/gym-1m/README.md and results/hc-1m/README.md.
    found = {key: round(float(row["mean"]), 2) for key, row in rows.items()}
    assert found == {
        ("ppo", "Ant-v4", "rn-d"): 0.18,
        ("ppo", "Ant-v4", "rn-d · fast"): 0.60,
        ("ppo", "Ant-v4", "mlp-c"): 0.02,
        ("ppo", "Hopper-v4", "rn-d"): 0.50,
        ("ppo", "Hopper-v4", "mlp-c"): 0.88,
        ("spo", "HalfCheetah-v4", "rn-d"): 0.10,
        ("spo", "HalfCheetah-v4", "mlp-d"): 0.04,
        ("spo", "HalfCheetah-v4", "mlp-c"): 0.05,
        ("trpo", "HalfCheetah-v4", "rn-d"): 0.07,
        ("trpo", "HalfCheetah-v4", "mlp-d"): 0.04,
        ("trpo", "HalfCheetah-v4", "mlp-c"): 0.12,
    }
    assert {row["step"] for row in rows.values()} == {"1000448"}
    assert (tmp_path / "report" / "tables" / "scores.md").read_text().startswith("| task | algo | group | mean | iqm |")


def test_a_partly_finished_study_is_reported_with_what_is_missing(
    tmp_path: Path, make_study: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [{"returns": [0.0, 1.0], "seed": 1}, {"returns": [0.0], "seed": 2, "steps": 100, "status": "running"}]
    runs += [{"returns": None, "seed": 3, "steps": 100}]
    study = make_study(tmp_path / "study", runs)
    assert main(["report", str(study)]) == 0
    told = capsys.readouterr().out
    assert "missing: Ant-v4, ppo, rn-d, seed 3: not started" in told
    text = check_page(study / "report" / "index.html")
    assert "What is missing: 2 runs not complete" in text
    assert "Ant-v4, ppo, rn-d, seed 2: 0 of 100 steps (running, or cut off)" in text
    assert "1 of 3" in text
    # A report inside a study is not read as part of it.
    assert main(["report", str(study), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["runs"], said["complete"], len(said["missing"]), said["problems"]) == (3, 1, 2, [])


def test_the_page_shows_the_intro_only_where_it_says_more_than_the_aggregate(tmp_path: Path, make_run: Make) -> None:
    for task in ("Ant-v4", "Hopper-v4"):
        for variant in ("rn-d", "mlp-c"):
            make_run(tmp_path / "runs" / f"{task}-{variant}", [0.0, 1000.0], task=task, variant=variant)
    page = write_report(load(tmp_path / "runs"), tmp_path / "report")
    assert 'data-figure="intro"' not in check_page(page)
    assert (page.parent / "figures" / "print" / "intro.pdf").is_file()
    make_run(tmp_path / "runs" / "more", [0.0, 1000.0], task="Ant-v4", variant="rn-c")
    make_run(tmp_path / "runs" / "most", [0.0, 1000.0], task="Hopper-v4", variant="rn-c")
    assert 'data-figure="intro"' in check_page(write_report(load(tmp_path / "runs"), tmp_path / "report"))


def test_a_study_without_any_evaluation_still_has_a_page(tmp_path: Path, make_study: Make) -> None:
    study = make_study(tmp_path / "study", [{"returns": None, "seed": 1, "steps": 100}])
    text = check_page(write_report(load(study), tmp_path / "report"))
    assert "There are no evaluations yet" in text
    assert not (tmp_path / "report" / "figures").exists()


def test_torn_files_are_told_on_the_page_and_by_the_command(
    tmp_path: Path, make_run: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_run(tmp_path / "run", [0.0, 1.0, 2.0])
    (path / "metrics.jsonl").write_text((path / "metrics.jsonl").read_text()[:-5])
    before = {file: file.read_bytes() for file in path.iterdir()}
    assert main(["report", str(path), "--out", str(tmp_path / "report")]) == 0
    assert "problem: the last line of" in capsys.readouterr().out
    assert "metrics.jsonl is cut off" in check_page(tmp_path / "report" / "index.html")
    assert {file: file.read_bytes() for file in path.iterdir()} == before, "run directories are only read"


def test_names_from_files_cannot_become_part_of_the_page(tmp_path: Path, make_run: Make) -> None:
    make_run(tmp_path / "runs" / "x", [0.0, 1.0], task="a</script><b>'&quot;:Env-v0")
    text = check_page(write_report(load(tmp_path / "runs"), tmp_path / "report"))
    assert "<b>'" not in text
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert json.loads(data)["figures"][0]["panels"][0]["title"] == "a</script><b>'&quot;:Env-v0, PPO"


def test_a_new_report_replaces_the_old_one_whole(tmp_path: Path, make_run: Make) -> None:
    make_run(tmp_path / "runs" / "one", [0.0, 1.0])
    page = write_report(load(tmp_path / "runs"), tmp_path / "report")
    first = page.read_bytes()
    (tmp_path / "report" / "figures" / "old.png").touch()
    write_report(load(tmp_path / "runs"), tmp_path / "report")
    assert page.read_bytes() == first, "the same runs, the same page"
    assert not (tmp_path / "report" / "figures" / "old.png").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report", "runs"], "nothing temporary is left"


def test_what_is_not_a_report_is_never_replaced(
    tmp_path: Path, make_run: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", [0.0, 1.0])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "index.html").write_text("<html>my own</html>")
    assert main(["report", str(run), "--out", str(tmp_path / "mine")]) == 2
    assert "exists and is not a report" in capsys.readouterr().err
    assert (tmp_path / "mine" / "index.html").read_text() == "<html>my own</html>"
    with pytest.raises(ConfigError, match="is not a report"):
        write_report(load(run), run)


def test_a_malformed_external_file_leaves_the_old_report_as_it_is(
    tmp_path: Path, make_run: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", [0.0, 1.0])
    assert main(["report", str(run)]) == 0
    before = (run / "report" / "index.html").read_bytes()
    (tmp_path / "bad.csv").write_text("task,variant,seed,step,score\nAnt-v4,x,1,10,high\n")
    assert main(["report", str(run), "--external", str(tmp_path / "bad.csv")]) == 2
    assert "score is 'high'; it must be a number" in capsys.readouterr().err
    assert (run / "report" / "index.html").read_bytes() == before


@pytest.mark.parametrize("words", [[], ["absent"], ["."]])
def test_nothing_to_report_is_wrong_usage(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", *words]) == 2
    assert capsys.readouterr().err.startswith("detent report: ")


def test_a_report_is_made_without_torch_and_without_a_network(tmp_path: Path, make_run: Make) -> None:
    run = make_run(tmp_path / "run", [0.0, 1.0])
    code = """
import socket, sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "gymnasium", "pandas"):
            raise ImportError(name + " is blocked")

def refuse(*arguments, **options):
    raise OSError("no network")

sys.meta_path.insert(0, NoTorch())
socket.socket.connect = refuse
from detent.cli import main
sys.exit(main(["report", sys.argv[1]]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(run)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    check_page(run / "report" / "index.html")


def test_the_package_offers_its_reports_by_name() -> None:
    code = "import detent; print(*sorted({'load', 'write_report'} & set(dir(detent.report))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "load write_report"), done.stderr
