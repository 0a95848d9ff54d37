"""`python -m detent.cli.child PID train ...`: a `detent` command that stops as on SIGTERM when process PID is gone.

A study's engine starts its runs this way. If the engine were killed, they would otherwise keep running unseen and hold
their run directories against the next attempt.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from detent.cli import main

INTERVAL = 0.5
"""Seconds between two checks."""


def watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(INTERVAL)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=watch, args=(int(sys.argv[1]),), daemon=True).start()
    sys.exit(main(sys.argv[2:]))
