"""``sooner chat``: a conversation. Knows turns, commands and the keyboard. Does not know how an answer is made."""

from __future__ import annotations

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sooner.cli import groups as g
from sooner.cli import options as o
from sooner.cli.answer import fingerprint_line, follow, summary, warn_about
from sooner.cli.engine import engine_options, open_engine, sampling_from
from sooner.cli.groups import taking
from sooner.cli.output import Output, notes, say
from sooner.cli.prompt import user_message
from sooner.errors import InvalidRequest, SoonerError
from sooner.pictures import picture_part

if TYPE_CHECKING:
    from sooner.completion import Completion
    from sooner.engine import Engine
    from sooner.types import Sampling

__all__ = ["HELP", "Chat", "Talk", "chat"]

COMMANDS = """\
/system TEXT  tell the model how to be from now on; without TEXT, show it
/image FILE   show a picture with the next message, before its text
/reset        forget the conversation, keep the system message
/retry        answer the last message again
/stats        figures of this conversation
/save FILE    write the conversation to FILE (as messages if it ends in .json)
/help         this list
/exit         leave; so does Ctrl-D
Ctrl-C stops an answer; what was written of it stays in the conversation."""

_INDENTED = "  " + COMMANDS.replace("\n", "\n  ")

HELP = o.page(f"""Talk with the model.

Every answer sees the whole conversation; what was read before is still in the cache, so later turns begin quickly.
Messages can be piped in, one a line, and the answers come out on stdout.

[bold]In the conversation[/bold]

{_INDENTED}

[bold]Examples[/bold]

  sooner chat
  sooner chat -s "You are a patient teacher." -t 0.7
  sooner chat --url http://127.0.0.1:8000
  printf 'Hello\\nWhat did I say?\\n' | sooner chat

[bold]Exit codes[/bold]

  0 done, 2 bad input (piped input stops there), 130 Ctrl-C while loading""")


Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        rich_help_panel=o.PANELS[2],
        help="Talk with the model of a server that speaks OpenAI's API, such as sooner serve.",
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key", metavar="KEY", rich_help_panel=o.PANELS[2], envvar="SOONER_API_KEY", help="The key for --url."
    ),
]


@taking(g.ENGINE, g.DRAFTING, g.SAMPLING, g.TRUNCATION, g.PENALTIES)
def chat(
    context: typer.Context,
    *,
    system: o.System = None,
    stop: o.Stop = None,
    url: Url = None,
    api_key: ApiKey = None,
    verbose: o.Verbose = False,
) -> None:
    """Talk with the model (see HELP)."""
    options = engine_options(context.params)
    sampling = sampling_from(context.params, options.drafting()[1])
    if url is not None:
        from sooner.cli.remote import remote_chat

        remote_chat(context, url, api_key, sampling, system).loop()
        return
    engine = open_engine(context, options, remember=True, max_running=1, warm="background")
    if engine.template is None:
        raise InvalidRequest("this model has no chat template: use sooner run --raw, or a chat model", "model")
    Chat(engine, sampling, system=system, verbose=verbose).loop()


class Talk(ABC):
    """One conversation, whoever answers. ``messages`` are what the model sees, the system message first."""

    def __init__(self, *, system: str | None) -> None:
        self._system = system
        self._interactive = sys.stdin.isatty()
        self._turns: list[dict[str, Any]] = []
        self._shown: list[dict[str, Any]] = []

    @property
    @abstractmethod
    def name(self) -> str:
        """Who answers."""

    @abstractmethod
    def _answer(self) -> None:
        """Answer the last message; a refused one is taken out of the conversation again."""

    @abstractmethod
    def _stats(self) -> None:
        """Say the conversation's figures."""

    @abstractmethod
    def _same_again(self) -> bool:
        """Whether another answer to the same message would be the same text."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation so far."""
        head = [] if self._system is None else [{"role": "system", "content": self._system}]
        return [*head, *self._turns]

    def loop(self) -> None:
        """Read and answer until the end of the input or /exit."""
        if self._interactive:
            with suppress(ImportError):  # absent on some systems; lines are then edited as the terminal does it
                import readline  # noqa: F401 - importing it gives input() line editing and history
            say(f"{self.name or 'the model'} listens. /help lists the commands, Ctrl-D leaves.")
        while (line := self._read()) is not None:
            if not line.strip():
                continue
            try:
                if line.startswith("/"):
                    if not self._command(line):
                        return
                else:
                    self._turns.append(user_message(line, self._shown))
                    self._shown = []
                    self._answer()
            except SoonerError as error:
                if not self._interactive:
                    raise
                say(f"error: {error}", style="red")

    def _read(self) -> str | None:
        """The next line; None at the end of the input. Ctrl-C clears the line."""
        while True:
            try:
                line = input("> " if self._interactive else "")
                return line.encode(errors="surrogateescape").decode(errors="replace")
            except EOFError:
                if self._interactive:
                    print()
                return None
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                print()
                say("Ctrl-D or /exit leaves")

    def _command(self, line: str) -> bool:
        """Do what a line that begins with / says; False to leave."""
        name, _, rest = line.strip().partition(" ")
        if name in ("/exit", "/quit", "/bye"):
            return False
        commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: say(COMMANDS, style=""),
            "/system": self._set_system,
            "/image": self._show,
            "/reset": lambda _: self._reset(),
            "/retry": lambda _: self._retry(),
            "/stats": lambda _: self._stats(),
            "/save": self._save,
        }
        if name not in commands:
            raise InvalidRequest(f"there is no command {name}: /help lists them; begin with a space to send it")
        commands[name](rest.strip())
        return True

    def _set_system(self, text: str) -> None:
        if text:
            self._system = text
        say(f"system: {self._system}" if self._system is not None else "there is no system message: /system TEXT")

    @abstractmethod
    def _demand_pictures(self) -> None:
        """Raises `InvalidRequest` where it is known that whoever answers takes no pictures."""

    def _show(self, where: str) -> None:
        if not where:
            raise InvalidRequest("/image needs a file, as in /image cat.png")
        self._demand_pictures()
        self._shown.append(picture_part(os.path.expanduser(where), "image"))
        say("the next message shows it" if len(self._shown) == 1 else f"the next message shows {len(self._shown)}")

    def _reset(self) -> None:
        self._turns.clear()
        self._shown = []
        say("forgotten")

    def _retry(self) -> None:
        if not self._turns:
            raise InvalidRequest("there is nothing to answer again: write a message first")
        if self._turns[-1]["role"] == "assistant":
            self._turns.pop()
        if self._same_again():
            say("the same text again: -t above 0 without --seed gives another")
        self._answer()

    def _save(self, name: str) -> None:
        if not name:
            raise InvalidRequest("/save needs a file name, as in /save talk.txt")
        path = Path(name).expanduser()
        if path.suffix == ".json":
            text = json.dumps(self.messages, ensure_ascii=False, indent=1) + "\n"
        else:
            text = "".join(f"{turn['role']}: {_as_text(turn['content'])}\n\n" for turn in self.messages)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            draft.write_text(text, encoding="utf-8")
            os.replace(draft, path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise InvalidRequest(f"{path} cannot be written ({error.strerror or error}): give another path") from error
        say(f"saved {len(self._turns)} messages to {path}")


def _as_text(content: str | Sequence[Mapping[str, Any]]) -> str:
    """A message's content in a file of text; pictures are named as such."""
    if isinstance(content, str):
        return content
    return "".join(str(part["text"]) if part["type"] == "text" else "[picture] " for part in content)


class Chat(Talk):
    """A conversation with an engine in this process."""

    def __init__(self, engine: Engine, sampling: Sampling, *, system: str | None, verbose: bool = False) -> None:
        super().__init__(system=system)
        self._engine = engine
        self._sampling = sampling
        self._verbose = verbose
        self._answers: list[Completion] = []

    @property
    def name(self) -> str:
        """The model's."""
        return self._engine.name

    def _demand_pictures(self) -> None:
        from sooner.prompt import demand_pictures

        demand_pictures(self._engine.target, "image")

    def _same_again(self) -> bool:
        return self._sampling.temperature == 0 or self._sampling.seed is not None

    def _answer(self) -> None:
        try:
            handle = self._engine.submit(self._engine.request(self.messages, self._sampling))
        except SoonerError:
            self._turns.pop()
            raise
        with Output() as out:
            follow(self._engine, handle, lambda step: out.write(step.text))
        self._turns.append({"role": "assistant", "content": "".join(step.text for step in handle.steps)})
        self._answers.append(self._engine.completion(handle))
        self._close(self._answers[-1])

    def _close(self, completion: Completion) -> None:
        warn_about(completion)
        console = notes()
        if self._verbose:
            say(fingerprint_line(completion))
        if self._verbose or (console.is_terminal and self._interactive):
            console.print(summary(completion, seed=self._sampling.temperature > 0 or self._verbose))

    def _stats(self) -> None:
        if not self._answers:
            raise InvalidRequest("there are no figures yet: write a message first")
        tokens = sum(answer.usage.completion_tokens for answer in self._answers)
        drafting = [answer.speculation for answer in self._answers]
        decoding_ms = sum(a.timings.total_ms - a.timings.ttft_ms for a in self._answers)
        last = self._answers[-1].usage
        say(f"{len(self._answers)} answers, {tokens} tokens, {1e3 * tokens / max(decoding_ms, 1e-9):.1f} tokens/s")
        say(
            f"{sum(s.accepted for s in drafting)} of {sum(s.drafted for s in drafting)} drafted tokens accepted "
            f"(drafter {drafting[-1].drafter})"
        )
        say(
            f"the last prompt had {last.prompt_tokens} tokens, {last.cached_tokens} of them from the cache; "
            f"the context holds {self._engine.target.context}"
        )
