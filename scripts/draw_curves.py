"""Draw one figure from run directories; `detent report` draws them all.

python scripts/draw_curves.py OUT.png RUN...              learning curves beside the paper's
python scripts/draw_curves.py --metric NAME OUT.png RUN...  a column of metrics.jsonl
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from detent.report import Results, draw, figures, load, metric_figure
from detent.report.spec import Figure


def learning_curves(results: Results) -> Figure:
    """Join the curves of all algorithms in one figure."""
    first, *others = [figure for figure in figures(results).values() if figure.is_of("tasks")]
    return replace(first, panels=first.panels + tuple(panel for figure in others for panel in figure.panels))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--metric")
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    given = parser.parse_args()
    results = load(*given.runs)
    draw(metric_figure(results, given.metric) if given.metric else learning_curves(results), given.out)
