"""Takes the pictures of docs/pictures: `python -m scripts.make_screenshots`.

Starts a Dagster UI of its own on the example definitions, with a DAGSTER_HOME that it throws away,
and lets a headless Chromium look at it. Neither a broker nor a JVM is needed.
"""

import base64
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
from typing import Any, Final

import click
import numpy as np
from websockets.sync.client import ClientConnection, connect

from examples.definitions import defs as code_location
from kstreams_assets.orchestration.keys import folded
from scripts.indexed_png import indexed_png

CHECKOUT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = CHECKOUT / "docs" / "pictures"
WIDTH: Final = 1400
HEIGHT: Final = 900
_WIDE: Final = 1800
_FEW_STORES: Final = 3
_CHROMIUM: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
_START_TIMEOUT_S: Final = 300.0
_PAGE_TIMEOUT_S: Final = 90.0
_CALL_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 15.0
_PAUSE_S: Final = 0.5
_CALM_S: Final = 4.0
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
            page = (
                f"/assets/ktable/{urllib.parse.quote(application_id)}/{urllib.parse.quote(store)}"
            )
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
    whole = folded(application_id)
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


class Page:
    """One page of a headless Chromium, over its debugging protocol."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Send one command, and wait for its answer."""
        self._number += 1
        text = json.dumps({"id": self._number, "method": method, "params": parameters})
        self._connection.send(text)
        while True:
            answer = json.loads(self._connection.recv(timeout=_CALL_TIMEOUT_S))
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise ScreenshotError(f"{method}: {answer['error'].get('message')}")
                return answer["result"]

    def evaluate(self, script: str) -> object:
        """The value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return result["result"].get("value")

    def wait_for(self, text: str) -> None:
        """Wait until a text is on the page."""
        deadline = time.monotonic() + _PAGE_TIMEOUT_S
        while not self.evaluate(f"document.body?.innerText.includes({json.dumps(text)})"):
            if time.monotonic() > deadline:
                raise ScreenshotError(f"{text!r} did not appear within {_PAGE_TIMEOUT_S:g} s.")
            time.sleep(_PAUSE_S)

    def take(self, address: str, picture: Picture) -> bytes:
        """The picture as PNG."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=picture.width,
            height=picture.height,
            deviceScaleFactor=WIDTH / picture.width,
            mobile=False,
        )
        self.call("Page.navigate", url=f"{address}/server_info")
        self.wait_for("dagster")  # local storage belongs to the address
        expanded = ",".join(f"global@global:{group}" for group in picture.expanded)
        self._remember("asset-graph-open-graph-nodes-global-__GLOBAL__", {"expanded": expanded})
        self._remember("dagster-nav-collapsed", True)
        self.call("Page.navigate", url=address + picture.path)
        self.wait_for(picture.awaited)
        time.sleep(_CALM_S)  # the graph is laid out and zoomed after its texts are there
        if picture.script:
            self.evaluate(picture.script)
            time.sleep(_CALM_S)
        shot = self.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)
        return self._with_few_colours(shot["data"])

    def _remember(self, name: str, value: object) -> None:
        self.evaluate(f"localStorage.setItem({json.dumps(name)}, {json.dumps(json.dumps(value))})")

    def _with_few_colours(self, png: str) -> bytes:
        """The picture with at most 256 colours, a third of the size; the browser decodes it."""
        self.call("Page.navigate", url="about:blank")
        script = _PIXELS.replace("PNG", json.dumps(f"data:image/png;base64,{png}"))
        result = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        width, height, pixels = result["result"]["value"]
        colours = np.frombuffer(base64.b64decode(pixels), np.uint8).reshape(height, width, 4)
        return indexed_png(colours[:, :, :3])


_PIXELS: Final = """(async () => {
    const image = new Image();
    image.src = PNG;
    await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height);
    const context = canvas.getContext('2d');
    context.drawImage(image, 0, 0);
    const data = context.getImageData(0, 0, image.width, image.height).data;
    let text = '';
    for (let i = 0; i < data.length; i += 32768)
        text += String.fromCharCode(...data.subarray(i, i + 32768));
    return [image.width, image.height, btoa(text)];
})()"""


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
def chromium(folder: Path) -> Iterator[Page]:
    """A headless browser with one page.

    Raises:
        ScreenshotError: There is none on the PATH.
    """
    program = next((found for name in _CHROMIUM if (found := shutil.which(name))), None)
    if program is None:
        raise ScreenshotError(
            f"No Chromium on the PATH (looked for {', '.join(_CHROMIUM)}). Install one:"
            " apt-get install chromium."
        )
    port = free_port()
    command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--window-size={WIDTH},{HEIGHT}", f"--user-data-dir={folder / 'chromium'}"]
    command += [f"--remote-debugging-port={port}", "--no-first-run", "about:blank"]
    log = folder / "chromium.log"
    with _process(command, log, os.environ):
        targets = json.loads(_wait_for(f"http://127.0.0.1:{port}/json", log))
        url = next(t["webSocketDebuggerUrl"] for t in targets if t["type"] == "page")
        with connect(url, max_size=None, open_timeout=_CALL_TIMEOUT_S) as connection:
            page = Page(connection)
            page.call("Page.enable")
            yield page


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
            chromium(Path(scratch)) as page,
        ):
            for picture in wanted:
                image = page.take(address, picture)
                (folder / f"{picture.name}.png").write_bytes(image)
                click.echo(f"{picture.name}: {len(image):,} bytes")
    except ScreenshotError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
