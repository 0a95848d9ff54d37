"""Draw one figure from run directories; `detent report` draws them all.

python scripts/draw_curves.py OUT.png RUN...              learning curves beside the paper's
python scripts/draw_curves.py --metric NAME OUT.png RUN...  a column of metrics.jsonl
"""

from __future__ import annotations

import argparse
from pathlib import Path

from detent.report import draw, figures, load, metric_figure

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--metric")
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    given = parser.parse_args()
    results = load(*given.runs)
    draw(metric_figure(results, given.metric) if given.metric else figures(results)["tasks"], given.out)
