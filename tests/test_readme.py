"""What the documents say is true: their commands run, their snippets run, and the tests and modules they name exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import tomllib
from importlib.metadata import entry_points, metadata
from pathlib import Path

import pytest

from sooner import engine as engine_module
from sooner.cli.app import app
from sooner.store import ModelFiles
from sooner.verify import RULES

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "sooner"
READMES = ("README.md", "README.ko.md")
DOCUMENTS = (*READMES, "docs/architecture.md", "docs/audit.md", "docs/lossless.md")
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def read(document: str) -> str:
    return (ROOT / document).read_text("utf-8")


def blocks(document: str, *languages: str) -> list[str]:
    fences = re.findall(r"^```(\w+)\n(.*?)^```$", read(document), re.MULTILINE | re.DOTALL)
    return [body for language, body in fences if language in languages]


def commands(document: str) -> list[str]:
    return [line for body in blocks(document, "bash", "console") for line in body.splitlines() if line.strip()]


COMMANDS = list(dict.fromkeys(command for readme in READMES for command in commands(readme)))
CHECKED = [command for command in COMMANDS if command.startswith(("make ", "pip "))]


def test_make_targets_and_extras_exist() -> None:
    assert {"make demo", "make test"} <= set(CHECKED)
    targets = re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE)
    for command in CHECKED:
        assert not command.startswith("make ") or set(command.split()[1:]) <= set(targets), command
        for extra in re.findall(r"\[(\w+)\]", command):
            assert extra in (metadata("sooner").get_all("Provides-Extra") or []), command


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in CHECKED])
def test_the_command_runs(command: str, default_files: ModelFiles, tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("readme", READMES)
def test_the_snippets_run(readme: str, default_files: ModelFiles, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    snippets = blocks(readme, "python")
    assert snippets
    for snippet in snippets:
        exec(compile(snippet, readme, "exec"), namespace)
    assert capsys.readouterr().out.strip()


def test_both_languages_say_the_same() -> None:
    english, korean = map(read, READMES)
    assert commands("README.md") == commands("README.ko.md")
    for pattern in (r"^#+ ", r"^\| ", r"^\d\. ", r"^- "):
        assert len(re.findall(pattern, english, re.M)) == len(re.findall(pattern, korean, re.M)), pattern
    for pattern in (r"`tests/[^`]+`", r"\]\(([^)]+)\)"):
        found = [re.findall(pattern, text) for text in (english, korean.replace(".ko.svg)", ".svg)"))]
        assert sorted(set(found[0]) - {"README.ko.md"}) == sorted(set(found[1]) - {"README.md"})


def test_the_sentence_opens_readme_engine_and_architecture() -> None:
    sentence = " ".join((engine_module.__doc__ or "").split("\n\n")[0].split())
    assert sentence.startswith("Decoding is one loop.")
    for document in ("README.md", "docs/architecture.md"):
        first = next(body for body in read(document).split("\n\n") if body.startswith("> "))
        assert " ".join(first.replace("> ", " ").split()) == sentence


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_and_tests_that_are_named_exist(document: str) -> None:
    text = read(document)
    for link in re.findall(r"\]\((?!https?://)([^)#]+)\)", text):
        assert (ROOT / document).parent.joinpath(link).exists(), link
    file = ""
    for path, test in re.findall(r"`(tests/[\w/]+\.py)?:{0,2}(test_\w+)?`", text):
        file = path or file
        assert not path or (ROOT / path).is_file(), path
        assert not test or f"def {test}(" in read(file), f"{file}::{test}"


def test_every_module_has_its_bullet() -> None:
    described = re.findall(r"^- `([\w/.]+)`: ", read("docs/architecture.md"), re.MULTILINE)
    assert len(described) == len(set(described))
    paths = (path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))
    modules = {path if path == "__init__.py" else path.removesuffix("__init__.py") for path in paths}
    assert set(described) == modules


def test_the_tables_list_every_drafter_rule_and_command() -> None:
    names = [command.name for command in app.registered_commands] + [group.name for group in app.registered_groups]
    commands = {f"sooner {name}" for name in names}
    for readme in READMES:
        cells = set(re.findall(r"`([\w ]+)`", "\n".join(re.findall(r"^\| (.*?) \|", read(readme), re.MULTILINE))))
        assert set(entry_points(group="sooner.drafters").names) | set(RULES) | commands <= cells
        assert {cell for cell in cells if cell.startswith("sooner ")} == commands


def example(*arguments: str, path: Path | None = None) -> str:
    env = ENVIRONMENT | ({"PYTHONPATH": os.pathsep.join([str(path), str(ROOT / "examples")])} if path else {})
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_the_example_runs(name: str, default_files: ModelFiles) -> None:
    assert example(f"examples/{name}").strip()


def test_the_drafter_of_the_example_is_of_use(default_files: ModelFiles) -> None:
    kept, drafted = re.findall(r"^(\d+) of (\d+) drafted", example("examples/custom_drafter.py"), re.MULTILINE)[0]
    assert 0 < int(kept) <= int(drafted)


USE = """
import sooner

class Codec:
    def encode(self, text, bos): return [ord(c) for c in text]

context = sooner.Context(id=0, tokens=[1, 97, 98], prompt_length=1, budget=2, sampling=sooner.Sampling())
drafter = sooner.create_drafter("kind=phrases,phrase=abcdef", codec=Codec())
print(drafter.name, *drafter.propose([context])[0].tokens)
"""


def test_a_strangers_drafter_is_found_by_name(tmp_path: Path) -> None:
    (declared,) = re.findall(r"^( +\[project.*?)^\"", read("examples/custom_drafter.py"), re.MULTILINE | re.DOTALL)
    ((group, points),) = tomllib.loads(textwrap.dedent(declared))["project"]["entry-points"].items()
    info = tmp_path / "phrases-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: phrases\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()))
    assert example("-c", USE, path=tmp_path).split() == ["phrases", "99", "100"]
