"""Draw what run directories hold.

python scripts/draw_curves.py OUT.png RUN...              learning curves beside the paper's
python scripts/draw_curves.py --metric NAME OUT.png RUN...  a column of metrics.jsonl
"""

from __future__ import annotations

import argparse
from pathlib import Path

from detent.figures import draw_learning_curves, draw_metric

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--metric")
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    given = parser.parse_args()
    if given.metric:
        draw_metric(given.runs, given.metric, given.out)
    else:
        draw_learning_curves(given.runs, given.out)
