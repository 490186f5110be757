"""Takes the pictures of docs/pictures: `python -m scripts.make_screenshots`.

Starts a Dagster UI of its own on the example definitions, with a DAGSTER_HOME that it throws away,
and lets a headless Chromium look at it. Neither a broker nor a JVM is needed.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from playwright.sync_api import Error, Page

from examples.definitions import defs as code_location
from kstreams_assets.orchestration.keys import sanitize_name
from scripts.chromium import ChromiumError, open_page, picture

CHECKOUT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = CHECKOUT / "docs" / "pictures"
WIDTH: Final = 1400
HEIGHT: Final = 900
_WIDE: Final = 1800
_FEW_STORES: Final = 3
_START_TIMEOUT_S: Final = 300.0
_CALL_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 15.0
_PAUSE_S: Final = 0.5
_CALM_MS: Final = 4_000.0
_PARTS: Final = ("topics", "backups", "ktables", "completeness", "governance", "restore", "drill")


@dataclass(frozen=True, slots=True)
class Picture:
    """A page of the UI, what must stand in it before it is taken, and what is done first.

    `expanded` are the groups that a graph shows with their assets. Layout is done for `width` by
    `height` pixels and then made smaller to `WIDTH`.
    """

    name: str
    path: str
    awaited: str
    script: str = ""
    expanded: tuple[str, ...] = ()
    width: int = WIDTH
    height: int = HEIGHT


class ScreenshotError(Exception):
    """A picture could not be taken; the message says why."""


def pictures(applications: Mapping[str, Sequence[str]]) -> list[Picture]:
    """Of each application (with its stores): the graph of its groups, few KTables shown one by one;
    and of its first store, by name, lineage and columns.
    """
    found: list[Picture] = []
    for application_id, stores in sorted(applications.items()):
        found.append(_graph(application_id, len(stores)))
        for store in sorted(stores)[:1]:
            name, of_store = urllib.parse.quote(application_id), urllib.parse.quote(store)
            page = f"/assets/{name}/ktable/{of_store}"
            found.append(
                Picture(
                    f"ktable-{application_id}",
                    f"{page}?view=lineage&lineageScope=neighbors&lineageDepth=5",
                    "ktables",
                    width=_WIDE,
                    height=_WIDE * HEIGHT // WIDTH,
                )
            )
            found.append(
                Picture(f"columns-{application_id}", f"{page}?view=overview", "value", _TO_COLUMNS)
            )
    return found


def _graph(application_id: str, stores: int) -> Picture:
    whole = sanitize_name(application_id)
    groups = [f"{whole}/{part}" for part in _PARTS]
    selection = " or ".join(f'group:"{group}"' for group in groups)
    return Picture(
        f"lineage-{application_id}",
        f"/asset-groups~{urllib.parse.quote(selection, safe='')}",
        "restore",
        _CLOSE_SIDEBAR,
        (whole, f"{whole}/ktables") if stores <= _FEW_STORES else (whole,),
    )


_TO_COLUMNS: Final = """
    [...document.querySelectorAll('div')].find(e => e.textContent === 'Columns')?.scrollIntoView()
"""
_CLOSE_SIDEBAR: Final = """(() => {
    const field = [...document.querySelectorAll('input')].find(e => e.placeholder === 'Jump to…');
    const box = field?.getBoundingClientRect();
    box && document.elementFromPoint(box.right + 25, box.top + 10)?.closest('button')?.click();
})()"""


def take(address: str, wanted: Picture) -> bytes:
    """The picture as PNG; raises ChromiumError, or playwright's Error where its text is missing."""
    with open_page(wanted.width, wanted.height, scale=WIDTH / wanted.width) as page:
        page.goto(f"{address}/server_info")  # local storage belongs to the address
        expanded = ",".join(f"global@global:{group}" for group in wanted.expanded)
        _remember(page, "asset-graph-open-graph-nodes-global-__GLOBAL__", {"expanded": expanded})
        _remember(page, "dagster-nav-collapsed", True)
        page.goto(address + wanted.path)
        page.wait_for_function("text => document.body.innerText.includes(text)", arg=wanted.awaited)
        page.wait_for_timeout(_CALM_MS)  # the graph is laid out and zoomed after its texts
        if wanted.script:
            page.evaluate(wanted.script)
            page.wait_for_timeout(_CALM_MS)
        return picture(page)


def _remember(page: Page, name: str, value: object) -> None:
    page.evaluate("([name, value]) => localStorage.setItem(name, value)", [name, json.dumps(value)])


@contextlib.contextmanager
def dagster_ui(folder: Path, port: int) -> Iterator[str]:
    """A Dagster UI on the code location of this checkout; gives its address."""
    home = folder / "dagster_home"
    home.mkdir()
    shutil.copy(CHECKOUT / "dagster.yaml", home)
    command = [sys.executable, "-m", "dagster_webserver", "--host", "127.0.0.1"]
    command += ["--port", str(port), "-m", "examples.definitions", "--read-only"]
    environment = {**os.environ, "DAGSTER_HOME": str(home), "KSTREAMS_WAREHOUSE": "/backup"}
    address = f"http://127.0.0.1:{port}"
    with _process(command, folder / "ui.log", environment):
        _wait_for(f"{address}/server_info", folder / "ui.log")
        yield address


@contextlib.contextmanager
def _process(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=CHECKOUT, env=dict(environment)
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=_STOP_TIMEOUT_S)


def _wait_for(url: str, log: Path) -> bytes:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=_CALL_TIMEOUT_S) as response:  # noqa: S310 - own
                return response.read()
        except (urllib.error.URLError, OSError) as error:
            if time.monotonic() > deadline:
                tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
                raise ScreenshotError(f"{url} did not answer ({error}).\n{tail}") from error
        time.sleep(_PAUSE_S)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def applications() -> dict[str, list[str]]:
    """The example applications with their stores that have a KTable."""
    keys = [spec.key.path for spec in code_location().resolve_all_asset_specs()]
    found: dict[str, list[str]] = {path[0]: [] for path in keys if path[1] == "recovery_points"}
    for path in keys:
        if path[1] == "ktable":
            found[path[0]].append(path[2])
    return found


@click.command()
@click.option("--only", help="Only pictures whose name contains this.")
@click.option("--folder", type=click.Path(path_type=Path), default=FOLDER)
def main(only: str | None, folder: Path) -> None:
    """Take the pictures of the documents."""
    wanted = [p for p in pictures(applications()) if not only or only in p.name]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with (
            tempfile.TemporaryDirectory() as scratch,
            dagster_ui(Path(scratch), free_port()) as address,
        ):
            for one in wanted:
                image = take(address, one)
                (folder / f"{one.name}.png").write_bytes(image)
                click.echo(f"{one.name}: {len(image):,} bytes")
    except (ChromiumError, Error, ScreenshotError) as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
