"""Entry point of `python -m detent`."""

import sys

from detent.cli import main

sys.exit(main())
