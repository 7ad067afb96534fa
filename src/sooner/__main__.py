"""``python -m sooner`` is the command line."""

from __future__ import annotations

import sys

from sooner.cli import main

sys.exit(main())
