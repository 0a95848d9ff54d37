"""Reports: statistics, figures and tables from run directories, and one page that shows them.

import detent.report

results = detent.report.load("studies/gym-small")
results.evaluations_table()["score"]
figure = detent.report.figures(results)["tasks-ppo"]
detent.report.draw(figure, Path("tasks.png"))
"""

from __future__ import annotations

from detent.report.drawing import draw
from detent.report.loading import Results, load
from detent.report.making import figures, metric_figure, tables, write_report

__all__ = ["Results", "draw", "figures", "load", "metric_figure", "tables", "write_report"]
