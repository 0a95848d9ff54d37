"""Figures and tables for print: what is chosen, how wide it is, and what a publisher asks of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib.text
import numpy as np
import pytest
from matplotlib.figure import Figure as Canvas

from detent.cli import main
from detent.errors import ConfigError
from detent.report import draw, load, tables
from detent.report import figures as make
from detent.report.latex import booktabs, escaped, latex_tables
from detent.report.printing import inches, only_groups
from detent.report.spec import Axis, Figure, Panel, Series

Make = Callable[..., Path]

TASKS = {"Ant-v4": (-70.288, 3942.0), "Hopper-v4": (18.791, 3226.0)}


@pytest.fixture
def study(tmp_path: Path, make_study: Make) -> Path:
    """Two tasks, four variants under two algorithms with two seeds, and a sweep of widths."""
    runs: list[dict[str, Any]] = []
    for task, (low, high) in TASKS.items():
        for number, variant in enumerate(("rn-d", "rn-c", "mlp-d", "mlp-c")):
            scores = [0.0, 0.5 - 0.1 * number, 0.9 - 0.1 * number]
            returns = [low + score * (high - low) for score in scores]
            for seed in (1, 2):
                for algo in ("ppo", "trpo"):
                    runs.append({"task": task, "variant": variant, "seed": seed, "algo": algo, "returns": returns})
    low, high = TASKS["Ant-v4"]
    runs += [{"returns": [low, high], "every": 200, "overrides": {"actor.width": width}} for width in (64, 512)]
    return make_study(tmp_path / "study", runs)


@pytest.mark.parametrize(
    ("text", "width"),
    [("single", 3.25), ("double", 6.75), ("8.5 cm", 8.5 / 2.54), ("120mm", 12 / 2.54), ("246pt", 246 / 72.27)],
)  # fmt: skip
def test_a_width_is_a_column_or_a_number_with_its_unit(text: str, width: float) -> None:
    assert inches(text) == pytest.approx(width)


@pytest.mark.parametrize(("text", "why"), [("wide", "found 'wide'"), ("7", "found '7'"), ("1cm", "1cm is 0.39")])
def test_another_width_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        inches(text)


@pytest.mark.parametrize("width", [3.25, 6.75])
def test_a_printed_figure_has_its_width_readable_type_and_embedded_fonts(
    width: float, study: Path, tmp_path: Path, figures: list[Canvas]
) -> None:
    for name, figure in make(load(study)).items():
        draw(figure, tmp_path / f"{name}.pdf", tmp_path / f"{name}.svg", width=width)
        content = (tmp_path / f"{name}.pdf").read_bytes()
        (box,) = set(re.findall(rb"/MediaBox \[ 0 0 ([\d.]+)", content))
        assert float(box) == pytest.approx(72 * width)
        assert b"/FontFile2" in content
        assert b"/Type3" not in content
    for canvas in figures:
        texts = [text for text in canvas.findobj(matplotlib.text.Text) if text.get_text() and text.get_visible()]
        assert min(float(text.get_fontsize()) for text in texts) >= 7
        for axes in canvas.axes:
            title = axes.title.get_window_extent()
            assert title.x0 >= 0
            assert title.x1 <= canvas.bbox.x1, axes.get_title()


def require_apart(texts: list[matplotlib.text.Text]) -> None:
    """Fail if two texts that are shown overlap."""
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text() and text.get_visible()]
    for (one, box), (other, another) in combinations(boxes, 2):
        assert not box.overlaps(another), (one, other)


@pytest.mark.parametrize("width", [3.25, 6.75])
def test_names_of_compared_groups_do_not_cover_each_other(width: float, tmp_path: Path, figures: list[Canvas]) -> None:
    groups = ["mlp-d", "mlp-d · calibrated True · damping 10.0", "mlp-c · max kl 0.1", "mlp-c"]
    at = [np.array([float(number)]) for number in range(4)]
    series = [Series("rn-d", f"rn-d > {group}", np.array([0.5]), y) for group, y in zip(groups, at, strict=True)]
    long = [Series("rn-d", f"{groups[1]} > {group}", np.array([0.5]), y) for group, y in zip(groups, at, strict=True)]
    axes = Axis("probability", "share"), Axis("")
    panels = (
        Panel("Short", *axes, tuple(series)),
        Panel("Long", *axes, tuple(long)),
        Panel("One", *axes, (series[0],)),
    )
    draw(Figure("improvement", "", "", panels, kind="intervals"), tmp_path / "figure.pdf", width=width)
    for place in figures[-1].axes[:3]:
        require_apart(place.get_yticklabels())


@pytest.mark.parametrize(("low", "high"), [(1.3, 8.0), (4e-6, 5e-5), (2.1e2, 2.9e2), (2.1e-5, 2.2e-5), (1e-7, 1e3)])
def test_a_logarithmic_axis_has_labels_that_stand_apart(
    low: float, high: float, tmp_path: Path, figures: list[Canvas]
) -> None:
    series = Series("rn-d", "rn-d", np.array([0.0, 1e6]), np.array([low, high]))
    panel = Panel("HalfCheetah-v4, TRPO", Axis("environment steps", "steps"), Axis("trace", log=True), (series,))
    draw(Figure("gradient-variance", "", "", (panel,) * 4), tmp_path / "figure.pdf", width=3.25)
    for axes in figures[-1].axes:
        bottom, top = axes.get_ylim()
        labels = [
            label
            for label, tick in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)
            if bottom <= tick <= top and label.get_text()
        ]
        assert labels
        require_apart(labels)
        assert not any(label.get_text() for label in axes.get_yticklabels(minor=True))
        assert axes.title.get_window_extent().x1 <= figures[-1].bbox.x1


def test_a_printed_figure_is_the_same_bytes_again(study: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        draw(make(load(study))["intro"], tmp_path / f"{name}.pdf", width=3.25)
    assert (tmp_path / "first.pdf").read_bytes() == (tmp_path / "second.pdf").read_bytes()


def test_figures_groups_and_width_are_chosen_on_the_command_line(study: Path, tmp_path: Path) -> None:
    words = ["--figures", "intro,tasks", "--groups", "rn-d,mlp-c", "--width", "single", "--out", str(tmp_path / "out")]
    assert main(["report", str(study), *words]) == 0
    names = {"intro", "tasks-ppo", "tasks-trpo"}
    assert {path.stem for path in (tmp_path / "out" / "figures").glob("*.png")} == names
    for ending in ("pdf", "svg"):
        assert {path.stem for path in (tmp_path / "out" / "figures" / "print").glob(f"*.{ending}")} == names
    assert b"/MediaBox [ 0 0 234 " in (tmp_path / "out" / "figures" / "print" / "intro.pdf").read_bytes()
    scores = (tmp_path / "out" / "tables" / "scores-ppo.tex").read_text()
    assert "Task & rn-d & mlp-c \\\\" in scores


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--figures", "intr"], "these runs give no figure 'intr'; did you mean intro"),
        (["--groups", "rnd"], "there is no group 'rnd' among these runs; did you mean rn-d"),
        (["--width", "wide"], "found 'wide'"),
    ],
)
def test_what_is_not_there_cannot_be_chosen(
    words: list[str], why: str, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(study), *words, "--out", str(tmp_path / "out")]) == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_variant_stands_for_all_its_groups_and_a_group_for_itself(study: Path) -> None:
    results = load(study)
    assert {run.group for run in only_groups(results, ["rn-d"]).runs} == {
        "rn-d", "rn-d · width 64", "rn-d · width 512",
    }  # fmt: skip
    assert {run.group for run in only_groups(results, ["rn-d · width 64"]).runs} == {"rn-d · width 64"}


def test_latex_has_scores_with_intervals_and_runs(study: Path, tmp_path: Path) -> None:
    assert main(["report", str(study), "--figures", "intro", "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "tables" / "scores-ppo.tex").read_text()
    assert "Task & rn-d & rn-c & mlp-d & mlp-c \\\\" in text
    assert "Ant-v4 & 0.90 (2) & 0.80 (2) &" in text
    assert " & {\\scriptsize [0.90, 0.90]} & {\\scriptsize [0.80, 0.80]} &" in text
    assert "Mean of 2 gym tasks & 0.90 (4) &" in text
    assert text.count("{") == text.count("}")
    runtime = (tmp_path / "out" / "tables" / "runtime.tex").read_text()
    assert "\\textit{mean of 2 gym tasks}" in runtime
    references = (tmp_path / "out" / "tables" / "references.tex").read_text()
    assert "Ant-v4 & $-$70.288 & 3942 \\\\" in references
    settings = (tmp_path / "out" / "tables" / "hyper-parameters.tex").read_text()
    assert "Setting & gym PPO & gym TRPO \\\\" in settings
    assert "\\texttt{update.learning\\_rate} & 0.0003 & 0.0003 \\\\" in settings
    assert "\\texttt{ppo.clip} & 0.2 & -- \\\\" in settings
    assert "\\texttt{trpo.max\\_kl} & -- & 0.05 \\\\" in settings


def test_a_sweep_alone_is_tabled_as_well(tmp_path: Path, make_run: Make) -> None:
    for bins in (11, 101):
        make_run(tmp_path / "runs" / str(bins), [0.0, 1.0], overrides={"head.bins": bins})
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "tables" / "scores-ppo.tex").read_text()
    assert "Task & \\shortstack{rn-d \\\\ 11 bins} & \\shortstack{rn-d \\\\ 101 bins} \\\\" in text


def test_groups_with_long_names_have_a_line_each_and_tasks_a_column(tmp_path: Path, make_run: Make) -> None:
    names = make_long_names(tmp_path, make_run)
    text = latex(tmp_path)["scores-ppo"]
    assert "Actor & Ant-v4 & Hopper-v4 & \\shortstack{Mean of \\\\ 2 gym tasks} \\\\" in text
    for name in names:
        assert escaped(name) in text, "in full, whatever its length"


def make_long_names(path: Path, make_run: Make) -> list[str]:
    """Make runs whose groups have names of several settings; return the names."""
    names = []
    for number, gamma in enumerate((0.9, 0.95, 0.97, 0.98, 0.999)):
        names.append(f"rn-d · gamma {gamma} · entropy coef 0.0{number + 1} · max grad norm {(number + 1) / 20}")
        changes = {"advantage.gamma": gamma, "update.entropy_coef": (number + 1) / 100}
        changes |= {"update.max_grad_norm": (number + 1) / 20}
        for task in ("Ant-v4", "Hopper-v4"):
            for seed in (1, 2):
                out = path / "runs" / f"{task}-{number}-{seed}"
                make_run(out, [0.0, 1.0 + seed], task=task, seed=seed, overrides=changes)
    return names


def latex(path: Path) -> dict[str, str]:
    results = load(path / "runs")
    return latex_tables(tables(results), {run.group for run in results.runs})


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex here (texlive-latex-recommended)")
@pytest.mark.parametrize("names", ["short", "long"])
def test_latex_compiles_and_fits_the_page(names: str, study: Path, tmp_path: Path, make_run: Make) -> None:
    if names == "long":
        make_long_names(tmp_path, make_run)
    else:
        study.rename(tmp_path / "runs")
    made = latex(tmp_path)
    for name, text in made.items():
        (tmp_path / f"{name}.tex").write_text(text)
    inputs = "".join(f"\\input{{{name}}}\n" for name in made)
    # The narrowest text among the large conferences', in one column.
    width = "\\usepackage[textwidth=5.5in,textheight=9in]{geometry}\n"
    document = (
        f"\\documentclass{{article}}\n\\usepackage{{booktabs}}\n{width}\\begin{{document}}\n{inputs}\\end{{document}}\n"
    )
    (tmp_path / "paper.tex").write_text(document)
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    assert "Overfull" not in done.stdout
    assert "Float too large" not in done.stdout


def test_a_setting_that_differs_is_shown_with_who_has_which_value(study: Path) -> None:
    settings = tables(load(study))["hyper-parameters"]
    (row,) = settings.where(setting="actor.kind").rows()
    assert row["gym PPO"] == "rn (rn-d, rn-c); mlp (mlp-d, mlp-c)"
    (row,) = settings.where(setting="head.bins").rows()
    assert row["gym PPO"] == "41", "a Gaussian has no bins"
    assert {"seed", "threads", "eval.interval"}.isdisjoint(settings["setting"])


def test_runtime_ends_with_the_mean_over_a_familys_tasks(tmp_path: Path, make_run: Make) -> None:
    for task, speed in (("Ant-v4", 100.0), ("Hopper-v4", 300.0)):
        rows = [{"step": 100, "time/sps": speed, "time/iteration": speed * 36}]
        make_run(tmp_path / task, [0.0, 1.0], task=task, metrics=rows)
    *_, row = tables(load(tmp_path))["runtime"].rows()
    assert (row["task"], row["sps"], row["hours"], row["runs"]) == ("mean of 2 gym tasks", 200.0, 2.0, 2)


def test_latex_escapes_what_is_special_and_rules_stand_between_blocks() -> None:
    assert escaped("50% of a_b · {x}\\") == r"50\% of a\_b $\cdot$ \{x\}\textbackslash{}"
    text = booktabs(["A", "B"], [[["1", "2"]], [], [["3", "4"]]], "Caption.", "name")
    assert text == (
        "\\begin{table}\n  \\centering\n  \\small\n  \\setlength{\\tabcolsep}{4pt}\n"
        "  \\setlength{\\abovetopsep}{3pt}\n  \\caption{Caption.}\n  \\label{tab:name}\n  \\begin{tabular}{lc}\n"
        "    \\toprule\n    A & B \\\\\n    \\midrule\n    1 & 2 \\\\\n    \\midrule\n    3 & 4 \\\\\n"
        "    \\bottomrule\n  \\end{tabular}\n\\end{table}\n"
    )
