"""``python -m classwise``: the command line."""

from __future__ import annotations

import sys

from classwise.cli import main

sys.exit(main())
