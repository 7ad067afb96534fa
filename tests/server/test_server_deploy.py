"""What surrounds the server is true of it: the container, the unit, the dashboard, the documentation."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest
from page_server import Script
from page_server import serving as page_serving
from serving import client, raw, serving

from commandline import invoke
from sooner.server.schema import ChatBody

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text("utf-8")
UNIT = (ROOT / "deploy" / "sooner.service").read_text("utf-8")
DASHBOARD = json.loads((ROOT / "deploy" / "grafana.json").read_text("utf-8"))
DOCUMENT = (ROOT / "docs" / "server.md").read_text("utf-8")


def options_of_serve() -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]+", invoke("serve", "--help").out))


def command_lines() -> list[list[str]]:
    """Every `sooner serve ...` of the container, the unit and the documentation."""
    shell = re.findall(r"^(?:\$ )?(?:\S+=\S+ )*(sooner serve\b[^\n#|&]*)", DOCUMENT, re.MULTILINE)
    unit = re.findall(r"^ExecStart=(.*)$", UNIT, re.MULTILINE)
    (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", DOCKERFILE, re.MULTILINE)
    return [*map(shlex.split, shell), *map(shlex.split, unit), json.loads(entry)]


def test_every_option_that_is_named_exists() -> None:
    known = options_of_serve()
    lines = command_lines()
    assert len(lines) >= 4
    for line in lines:
        assert line[1] == "serve"
        assert {word for word in line if word.startswith("--")} <= known, line


def test_the_container_has_no_rights_and_knows_its_health() -> None:
    lines = [line for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]
    last = len(lines) - 1 - [line.split()[0] for line in lines[::-1]].index("FROM")
    words = [line.split()[0] for line in lines[last:]]
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert "USER root" not in DOCKERFILE
    extras = set(re.findall(r"\[([\w,]+)\]\"", DOCKERFILE)[0].split(","))
    assert extras <= set(metadata("sooner").get_all("Provides-Extra") or [])
    for path in re.findall(r"^COPY ([^-].*) \S+$", DOCKERFILE, re.MULTILINE):
        assert all((ROOT / name).exists() for name in path.split())


@pytest.mark.parametrize("loading", [False, True])
def test_the_health_check_tells(loading: bool) -> None:
    (check,) = re.findall(r"CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    code = json.loads(check)[-1]
    with page_serving(Script(loading=loading)) as url:
        here = code.replace("http://127.0.0.1:8000/", url)
        assert here != code
        done = subprocess.run([sys.executable, "-c", here], capture_output=True, check=False, timeout=30)
    assert (done.returncode == 0) is not loading


def test_the_containers_command_refuses_to_be_open() -> None:
    (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", DOCKERFILE, re.MULTILINE)
    refused = invoke(*json.loads(entry)[1:])
    assert refused.code == 2
    assert "--api-key" in refused.err


def test_systemd_waits_for_running_answers() -> None:
    (drain,) = re.findall(r"--drain (\d+)", UNIT)
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    assert int(stop) > int(drain)
    assert "DynamicUser=yes" in UNIT


def scraped() -> str:
    async def ask() -> str:
        async with serving() as (app, _), client(app) as api, raw(app) as http:
            await api.chat.completions.create(
                model="toy", messages=[{"role": "user", "content": "abc"}], seed=3, max_tokens=24
            )
            return (await http.get("/metrics")).text

    return asyncio.run(ask())


def test_the_dashboard_asks_for_metrics_and_labels_that_exist() -> None:
    text = scraped()
    series = {
        name: set(re.findall(r"(\w+)=", labels)) for name, labels in re.findall(r"^(sooner:\w+)\{(.*)\}", text, re.M)
    }
    asked = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    asked += [item["query"] for item in DASHBOARD["templating"]["list"] if item["type"] == "query"]
    names = {name for expr in asked for name in re.findall(r"sooner:\w+", expr)}
    assert len(names) > 12
    assert names <= set(series)
    for expr in asked:
        inside = [series[name] for name in re.findall(r"sooner:\w+", expr)]
        labels = set(re.findall(r"(\w+)=~", expr)) | {
            x for part in re.findall(r"by \((.*?)\)", expr) for x in part.split(", ")
        }
        assert all(labels <= have for have in inside), expr


def test_the_dashboard_is_laid_out_without_overlaps() -> None:
    cells: list[tuple[int, int]] = []
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells += [(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]
        assert panel["description"]
    assert len(cells) == len(set(cells))
    assert all(0 <= x < 24 for x, _ in cells)


def test_the_documents_json_is_what_the_server_takes() -> None:
    bodies: list[dict[str, Any]] = [json.loads(body) for body in re.findall(r"-d '(\{.*?\})'", DOCUMENT, re.DOTALL)]
    assert bodies
    for body in bodies:
        ChatBody.model_validate(body)


def test_the_documents_paths_are_the_servers() -> None:
    table = DOCUMENT.split("| path |", 1)[1].split("\n\n", 1)[0]
    named = set(re.findall(r"`(?:POST )?(/[^`]*)`", table))

    async def paths() -> set[str]:
        async with serving() as (app, _), raw(app) as http:
            described = set((await http.get("/openapi.json")).json()["paths"])
            for page in ("/", "/viewer"):
                assert (await http.get(page)).status_code == 200
            return {re.sub(r"\{.*\}", "{id}", path) for path in described} | {"/", "/viewer", "/openapi.json"}

    assert named == asyncio.run(paths())


def test_the_documents_pictures_and_files_exist_and_are_small() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", DOCUMENT) if "://" not in link]
    assert any(link.endswith(".png") for link in links)
    for link in links:
        assert (ROOT / "docs" / link).exists(), link
    assert sum(path.stat().st_size for path in (ROOT / "docs" / "images").iterdir()) < 600_000
