"""The package as its users meet it: public names, the cost of an import, what gets installed, layers, the wheel."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import sooner

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "sooner"
HEAVY = {"gguf", "jinja2", "nncf", "openvino", "openvino_genai", "optimum", "tokenizers", "torch", "transformers"}
MODULES = "import sys; before = set(sys.modules); {}; print(*sorted(set(sys.modules) - before))"


def python(code: str, *, executable: Path | str = sys.executable, cwd: Path | None = None) -> str:
    done = subprocess.run([executable, "-c", code], capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def packages(code: str) -> set[str]:
    """The top-level packages that ``code`` imports in a fresh interpreter."""
    return {name.partition(".")[0] for name in python(MODULES.format(code)).splitlines()[-1].split()}


def test_all_is_what_can_be_imported() -> None:
    assert sorted(set(sooner.__all__)) == sooner.__all__ == dir(sooner)
    for name in sooner.__all__:
        assert getattr(sooner, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = sooner.nothing


def test_type_checkers_see_the_same_names() -> None:
    (block,) = [n for n in ast.parse((SOURCE / "__init__.py").read_text()).body if isinstance(n, ast.If)]
    seen = {
        (alias.name, node.module) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert {name for name, _ in seen} | {"__version__"} == set(sooner.__all__)
    for name, module in seen:
        assert getattr(sooner, name) is getattr(sys.modules[str(module)], name)


def test_the_version_is_the_installed_one() -> None:
    assert sooner.__version__ == distribution("sooner").version


def test_importing_the_package_imports_nothing_else() -> None:
    assert packages("import sooner") - sys.stdlib_module_names == {"sooner"}


def test_the_import_check_can_fail() -> None:
    assert {"sooner", "numpy"} <= packages("import sooner; sooner.Sampling")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"]])
def test_asking_the_command_for_help_loads_no_back_end(arguments: list[str]) -> None:
    loaded = packages(f"import sooner.cli; assert sooner.cli.main({arguments}) == 0")
    assert "sooner" in loaded
    assert not loaded & (HEAVY | {"numpy", "huggingface_hub"})


def closure(name: str, extras: frozenset[str] = frozenset()) -> dict[str, Distribution]:
    """``name`` and all that it needs, as installed here, by canonical name."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = [(name, extras)]
    while todo:
        name, extras = todo.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found[name] = distribution(name)
        for requirement in map(Requirement, found[name].requires or ()):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in (extras or {""})):
                todo.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return found


def installed_bytes(parts: dict[str, Distribution]) -> int:
    files = {Path(str(file.locate())) for part in parts.values() for file in part.files or ()}
    return sum(file.stat().st_size for file in files if file.is_file())


def test_the_default_install_has_no_torch_and_is_small() -> None:
    parts = closure("sooner")
    assert {"numpy", "openvino", "tokenizers", "typer"} <= set(parts)
    assert not {"torch", "transformers", "optimum-intel", "nncf"} & set(parts)
    assert installed_bytes(parts) < 600e6 - 40e6, "a venv adds about 40 MB of its own (pip, setuptools, byte code)"


def test_typing_marker_and_licence_are_there() -> None:
    assert (SOURCE / "py.typed").is_file()
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_the_changelog_has_this_version() -> None:
    assert re.search(rf"^## \[{re.escape(sooner.__version__)}\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


BREACHES = {
    "verify/coupled.py": "import openvino",
    "control/fixed.py": "from sooner.engine import Engine",
    "draft/ngram.py": "from sooner.targets.toy import ToyTarget",
    "protocols.py": "from sooner.tree import sanitise",
    "engine.py": "import sooner.cli",
}


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    return subprocess.run(
        command, cwd=tree, env={**os.environ, "PYTHONPATH": "src"}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("breach", [None, *BREACHES])
def test_the_import_law_holds_and_a_breach_is_caught(breach: str | None, tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(SOURCE, tmp_path / "src" / "sooner", ignore=shutil.ignore_patterns("__pycache__"))
    if breach is not None:
        module = tmp_path / "src" / "sooner" / breach
        module.write_text(module.read_text() + f"\n{BREACHES[breach]}\n")
    done = lint_imports(tmp_path)
    assert (done.returncode == 0) == (breach is None), done.stdout + done.stderr
    assert ("BROKEN" in done.stdout) == (breach is not None)


SMOKE = """
from sooner.control.fixed import FixedController
from sooner.draft import create_drafter
from sooner.engine import Engine
from sooner.targets.toy import ToyTarget
from sooner.text import Detokenizer

class Letters:
    vocab_size, eos_ids, special_ids = 27, frozenset({0}), frozenset({0})
    def encode(self, text, *, special=False, bos=True): return [ord(c) - 96 for c in text]
    def decode(self, ids): return b"".join(map(self.token_bytes, ids)).decode()
    def token_bytes(self, id): return bytes([96 + id]) if id else b""
    def detokenizer(self): return Detokenizer(self.token_bytes)

def answer(drafter):
    engine = Engine(ToyTarget(27), Letters(), drafter=drafter, controller=FixedController(4))
    return engine.generate("sooner", max_tokens=40, ignore_eos=True).text

plain, drafted = answer(None), answer(create_drafter("ngram"))
assert plain == drafted and len(plain) > 20, (plain, drafted)
print(drafted)
"""


@pytest.mark.wheel
def test_the_wheel_runs_in_a_clean_venv(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--outdir", str(tmp_path / "dist"), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    assert "sooner/py.typed" in names
    modules = {path.relative_to(SOURCE.parent).as_posix() for path in SOURCE.rglob("*.py")}
    assert modules == {name for name in names if name.endswith(".py")}
    assert sdist.stat().st_size < 3e6  # the successor table of the default model is most of it
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    binaries = tmp_path / "venv" / "bin"
    subprocess.run([binaries / "python", "-m", "pip", "install", "--quiet", str(wheel)], check=True)
    version = subprocess.run(
        [binaries / "sooner", "--version"], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert sooner.__version__ in version.stdout
    assert python(SMOKE, executable=binaries / "python", cwd=tmp_path).strip().isalpha()
