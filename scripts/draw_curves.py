"""Draw learning curves of run directories beside the paper's: python scripts/draw_curves.py OUT.png RUN..."""

from __future__ import annotations

import sys
from pathlib import Path

from detent.figures import draw_learning_curves

if __name__ == "__main__":
    out, *runs = map(Path, sys.argv[1:])
    draw_learning_curves(runs, out)
