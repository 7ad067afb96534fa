"""``sooner tune --export``: the kept profile as flags of another engine.

Knows the profile's place and the shape of the answer. Does not know any engine's flags.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from sooner.cli.engine import engine_options, open_engine
from sooner.cli.output import print_json, warn
from sooner.errors import InvalidRequest

if TYPE_CHECKING:
    import typer

__all__ = ["print_export"]


def print_export(context: typer.Context, engine: str, *, json: bool) -> None:
    """Raises `InvalidRequest` for an unknown engine, for options that belong to measuring, or without a profile."""
    from sooner.integrations.flags import demand_engine, export
    from sooner.store.profile import find_profile

    demand_engine(engine)  # before a model is loaded
    for name in ("file", "config", "layerskip", "dry_run"):
        if context.params[name]:
            raise InvalidRequest(
                f"--export shows the profile that was kept and measures nothing: leave out {_spelt(name)}",
                "export",
            )
    loaded = open_engine(context, engine_options({**context.params, "draft": ("cascade",), "budget": None}))
    profile = find_profile(loaded.target.fingerprint, warn)
    if profile is None:
        raise InvalidRequest("there is no profile of this model on this machine: run sooner tune first", "export")
    found = export(profile, engine)
    if json:
        print_json(asdict(found))
    else:
        print(found)


def _spelt(name: str) -> str:
    return "FILE" if name == "file" else f"--{name.replace('_', '-')}"
