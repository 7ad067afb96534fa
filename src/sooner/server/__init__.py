"""The OpenAI-compatible server: continuous batches, figures in every reply, hard to break.

`create_app` is the application, `serve` hosts it. Knows engines. Does not know drafters or the command line.
"""

from __future__ import annotations

from sooner.server.app import create_app
from sooner.server.service import Service
from sooner.server.settings import Settings

__all__ = ["Service", "Settings", "create_app"]
