"""``sooner models``: what is in the cache. Knows how to list it. Does not know how models get there."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sooner.cli import options as o
from sooner.cli.output import print_json, say, tables
from sooner.cli.progress import progress

if TYPE_CHECKING:
    from sooner.store import ModelFiles

__all__ = ["HELP", "app"]

HELP = o.page("""List the models in the cache; show, fetch, export or remove one.

Models are imported once and kept in the platform's cache directory; SOONER_CACHE moves it. Files and folders of your
own are named by their path in every command and need no fetching.

[bold]Examples[/bold]

  sooner models
  sooner models pull HuggingFaceTB/SmolLM2-360M-Instruct
  sooner models show SmolLM2-135M-Instruct
  sooner models export SmolLM2-135M-Instruct ./smollm2
  sooner models remove SmolLM2-135M-Instruct

[bold]Exit codes[/bold]

  0 done, 2 no such model, or the cache cannot be read or written""")

app = typer.Typer(
    help=HELP, context_settings={"help_option_names": ["-h", "--help"]}, rich_markup_mode="rich", add_completion=False
)

Name = Annotated[str, typer.Argument(metavar="MODEL", help="A name from the list.")]


@app.callback(invoke_without_command=True)
def models(context: typer.Context, json: o.Json = False) -> None:
    """List the models (see HELP)."""
    if context.invoked_subcommand is not None:
        return
    from sooner.store import list_models

    found = list_models()
    if json:
        print_json([_record(files) for files in found])
    elif not found:
        say("there are no models in the cache yet: sooner models pull fetches the default one", style="")
    else:
        _table(found)


@app.command()
def show(name: Name, *, json: o.Json = False) -> None:
    """Everything known about one model.

    Exit codes: 0 done, 2 no such model.
    """
    from sooner.store import find_models

    record = _record(find_models(name)[0])
    if json:
        print_json(record)
        return
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for key, value in record.items():
        if key != "chat_template":
            table.add_row(key.replace("_", " "), "-" if value is None else str(value))
    tables().print(table)


@app.command()
def pull(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="A Hugging Face id, a file or a folder. (default: the built-in one)"),
    ] = None,
    *,
    offline: o.Offline = False,
    json: o.Json = False,
) -> None:
    """Fetch and import a model, so that later commands find it ready.

    Exit codes: 0 done, 2 it cannot be found, fetched or used.
    """
    from sooner.store import resolve

    with progress("looking for the model") as messages:
        files = resolve(name, offline=offline, progress=messages)
    if json:
        print_json(_record(files))
    else:
        say(f"{files.name} is ready in {files.folder}", style="")


@app.command()
def export(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="A name from the list, a .gguf file or an id.")],
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A new folder.")],
    *,
    offline: o.Offline = False,
    json: o.Json = False,
) -> None:
    """Write the weights of a GGUF model, de-quantised, as a Hugging Face folder for torch and other programs.

    Exit codes: 0 done, 2 it cannot be found, read or written.
    """
    from sooner.errors import InvalidRequest
    from sooner.store import locate
    from sooner.store.hugging_face import export_gguf

    with progress("looking for the model") as messages:
        path, known = locate(name, offline=offline, progress=messages)
        if not path.is_file():
            raise InvalidRequest(f"{known} is a folder already: {path}", "model")
        messages(f"writing {known}")
        kind = export_gguf(path, Path(folder).expanduser())
    if json:
        print_json({"model": known, "folder": folder, "weights": kind})
    else:
        say(f"{known} ({kind}, de-quantised) is in {folder}", style="")


@app.command()
def remove(name: Name, *, json: o.Json = False) -> None:
    """Remove a model from the cache. Files of your own are never touched.

    Exit codes: 0 done, 2 no such model.
    """
    from sooner.store import remove

    freed = remove(name)
    if json:
        print_json({"removed": name, "freed_bytes": freed})
    else:
        say(f"removed {name}, {_size(freed)} freed", style="")


def _record(files: ModelFiles) -> dict[str, Any]:
    values = {field.name: getattr(files, field.name) for field in fields(files)}
    record = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
    return {**record, "eos_ids": list(files.eos_ids), "size_bytes": _bytes(files)}


def _bytes(files: ModelFiles) -> int:
    return sum(path.stat().st_size for path in (files.xml, files.xml.with_suffix(".bin"), files.tokenizer))


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _table(found: list[ModelFiles]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("model", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("weights")
    table.add_column("context", justify="right")
    table.add_column("where", overflow="fold", style="dim")
    for files in found:
        table.add_row(files.name, _size(_bytes(files)), files.quantisation, str(files.context), str(files.folder))
    tables().print(table)
