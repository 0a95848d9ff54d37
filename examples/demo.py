"""Train RN-D on Hopper-v4 for about three minutes on two cores, then show what it learned.

`make demo` runs this. It leaves a run directory with a learning curve and a film of the trained policy.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from detent.cli import prepare_threads

prepare_threads()  # before torch is imported

import detent  # noqa: E402
