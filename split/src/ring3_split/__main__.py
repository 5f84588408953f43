"""`python -m ring3_split`."""

import sys

from ring3_split.cli import main

sys.exit(main())
