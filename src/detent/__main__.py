"""`python -m detent` is the command line."""

import sys

from detent.cli import main

sys.exit(main())
