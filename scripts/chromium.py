"""A headless Chromium of this machine, driven by Playwright: for pictures and for the browser test.

`python -m scripts.chromium` prints which one is used. Playwright's own download is never used.
"""

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from playwright.sync_api import Page, sync_playwright

from scripts.indexed_png import indexed_png

VARIABLE: Final = "CHROMIUM"
"""Names the program, where it is not on the PATH."""
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
_OF_MACOS: Final = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
_VERSION_TIMEOUT_S: Final = 60.0
_PAGE_TIMEOUT_S: Final = 90.0


class ChromiumError(Exception):
    """No Chromium can be started; the message says why and what to do."""


def find_chromium() -> str:
    """Return the program that `CHROMIUM` names, or the first that is on the PATH.

    Raises:
        ChromiumError: There is none.
    """
    named = os.environ.get(VARIABLE)
    for name in (named,) if named else (*_NAMES, _OF_MACOS):
        if (program := shutil.which(name)) is not None:
            return program
    found = f"{VARIABLE}={named} is not a program" if named else "No Chromium is on the PATH"
    raise ChromiumError(
        f"{found}. Install Chromium or Google Chrome (Debian: apt-get install chromium), or name"
        f" the program: {VARIABLE}=/path/to/chromium."
    )


def version_of(program: str) -> str:
    """Return the version that a browser prints.

    Raises:
        ChromiumError: It does not start, as the package of Ubuntu that only refers to a snap.
    """
    try:
        done = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ChromiumError(
            f"{program} does not start: {error}. Install another Chromium or Google Chrome, and"
            f" name it: {VARIABLE}=/path/to/chromium."
        ) from error
    return done.stdout.strip()


@contextmanager
def open_page(width: int, height: int, *, scale: float = 1.0) -> Iterator[Page]:
    """A page of a headless browser, laid out for so many pixels; `scale` resizes its pictures.

    Raises:
        ChromiumError: There is no browser.
    """
    program = find_chromium()
    with sync_playwright() as playwright:
        # Chromium refuses to run as root with its sandbox.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        try:
            context = browser.new_context(
                viewport={"width": width, "height": height},
                device_scale_factor=scale,
                timezone_id="UTC",
            )
            page = context.new_page()
            page.set_default_timeout(_PAGE_TIMEOUT_S * 1000)
            yield page
        finally:
            browser.close()


def picture(page: Page) -> bytes:
    """What a page shows, as PNG with at most 256 colours: a third of the size.

    The browser decodes the picture, so that no package for pictures is needed.
    """
    shot = base64.b64encode(page.screenshot()).decode()
    blank = page.context.new_page()
    try:
        width, height, pixels = blank.evaluate(_PIXELS, f"data:image/png;base64,{shot}")
    finally:
        blank.close()
    colours = np.frombuffer(base64.b64decode(pixels), np.uint8).reshape(height, width, 4)
    return indexed_png(colours[:, :, :3])


_PIXELS: Final = """async source => {
    const image = new Image();
    image.src = source;
    await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height);
    const context = canvas.getContext('2d');
    context.drawImage(image, 0, 0);
    const data = context.getImageData(0, 0, image.width, image.height).data;
    let text = '';
    for (let i = 0; i < data.length; i += 32768)
        text += String.fromCharCode(...data.subarray(i, i + 32768));
    return [image.width, image.height, btoa(text)];
}"""


if __name__ == "__main__":
    try:
        chosen = find_chromium()
        sys.stdout.write(f"{version_of(chosen)}: {Path(chosen)}\n")
    except ChromiumError as error:
        sys.exit(str(error))
