"""Lets the tests of the benchmarks import them: scripts that lie beside the package."""

import sys
from pathlib import Path

for folder in ("benchmarks", "benchmarks/peers"):
    sys.path.append(str(Path(__file__).parents[2] / folder))
