"""A stranger in the browser: looks at the pages, plans a restore, restores a window.

`PICTURES=docs/images pytest tests/e2e/test_browser.py` also writes the pictures of
docs/how-to/see-it-in-dagster.md.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, expect

from examples.order_processor.orders import customer_totals
from scripts.chromium import open_page, picture
from tests.e2e.browser_stage import APPLICATION, IN_WINDOW, LATER, Stage, staged
from tests.streams.test_order_processor import await_totals

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.e2e,
    pytest.mark.drill,
    pytest.mark.sample,
    pytest.mark.timeout(1200),
]

AFTERWARDS: Final = 500
"""Orders that arrive once the application runs on the target."""
_JOB: Final = "order_processor_restore"
_RUN_MS: Final = 300_000
_WIDTH, _HEIGHT = 1400, 1100
_CALM_MS: Final = 2_000
_FAR: Final = 100_000
_TARGET_TOPICS: Final = {
    "orders",
    "orders-rejected",
    "customer-totals",
    f"{APPLICATION}-order-totals-changelog",
    f"{APPLICATION}-orders-by-customer-repartition",
}


class Stranger:
    """Someone at the browser who knows Dagster, and the pages of one stage."""

    def __init__(self, stage: Stage, page: Page) -> None:
        self.stage = stage
        self.page = page
        expect.set_options(timeout=60_000)

    def opens(self, path: str) -> None:
        """Go to a page of Dagster."""
        self.page.goto(f"{self.stage.address}{path}")

    def opens_asset(self, *name: str, view: str = "overview") -> None:
        """Go to the page of an asset of the application."""
        self.opens(f"/assets/{'/'.join((APPLICATION, *name))}?view={view}")

    def opens_groups(self, *names: str) -> None:
        """Go to the graph of groups of the application's assets."""
        selection = " or ".join(f'group:"order_processor/{name}"' for name in names)
        self.opens(f"/asset-groups~{quote(selection, safe='')}")

    def sees(self, text: str | re.Pattern[str]) -> Locator:
        """Wait for a text; the first place where it is."""
        found = self.page.get_by_text(text).first
        expect(found).to_be_visible()
        return found

    def confirms_before(self, awaited: Locator) -> None:
        """Dagster asks whether to go on where assets above have no materialization yet."""
        confirm = self.page.get_by_role("button", name="Confirm")
        confirm.or_(awaited).first.wait_for()
        if confirm.count():
            confirm.click()

    def chooses_the_window(self) -> None:
        """In the dialog after a click on Materialize: nothing but the partition."""
        page, custom = self.page, self.page.get_by_role("button", name="Custom", exact=True)
        self.confirms_before(custom)
        custom.click()
        field = page.get_by_role("dialog").get_by_role("textbox").first
        field.fill(self.stage.window)
        field.press("Tab")
        self.sees("1 partition")

    def launches(self) -> None:
        """Launch what the dialog has, and wait for the end of the run on its page."""
        self.page.get_by_role("button", name="Launch 1 run").click()
        self.goes_to_the_run()

    def goes_to_the_run(self) -> None:
        """Follow the link to the run that was launched, and wait for its success."""
        run = self.page.locator('a[href^="/runs/"]').first
        self.confirms_before(run)
        run.wait_for()
        self.opens(run.get_attribute("href") or "")
        ended = self.page.get_by_text(re.compile("^(Success|Failure|Canceled)$")).first
        ended.wait_for(timeout=_RUN_MS)
        assert ended.inner_text() == "Success", self._failure()

    def sees_in_the_log(self, *texts: str) -> None:
        """Find each text in the log of the run by its filter."""
        field = self.page.get_by_placeholder("Filter…")
        for text in texts:
            field.fill(text)
            expect(self.page.get_by_text(text).first).to_be_visible()
        field.fill("")

    def _failure(self) -> str:
        self.page.get_by_placeholder("Filter…").fill("STEP_FAILURE")
        self.page.wait_for_timeout(_CALM_MS)
        return self.page.locator("body").inner_text()

    def takes(self, name: str, *, top: bool = False) -> None:
        """Take a picture of the page for the documents, where a folder for them is named.

        With `top` the log of a run is scrolled to its first line.
        """
        folder = os.environ.get("PICTURES")
        if not folder:
            return
        if top:
            self.page.mouse.move(_WIDTH / 2, _HEIGHT - 100)
            self.page.mouse.wheel(0, -_FAR)
        self.page.wait_for_timeout(_CALM_MS)
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"dagster-{name}.png").write_bytes(picture(self.page))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("browser")) as stage:
        yield stage


@pytest.fixture
def stranger(stage: Stage) -> Iterator[Stranger]:
    with open_page(_WIDTH, _HEIGHT) as page:
        page.add_init_script("localStorage.setItem('dagster-nav-collapsed', 'true')")
        yield Stranger(stage, page)


def test_a_click_on_the_restore_assets_shows_the_plan_and_writes_nothing(
    stage: Stage, stranger: Stranger
) -> None:
    assert stage.topics_on_target() == set()

    stranger.opens_groups("restore")
    stranger.page.get_by_role("button", name="Materialize all…").click()
    stranger.chooses_the_window()
    stranger.launches()

    assert stage.topics_on_target() == set()
    stranger.opens_asset("restore", "orders", view="events")
    stranger.sees(re.compile(f"Partition {stage.window} observed in run"))
    stranger.page.get_by_text("[Show Markdown]").first.click()
    stranger.sees("No blockers. Nothing was written yet.")
    for topic in _TARGET_TOPICS:
        stranger.sees(f"{topic} (new)")
    stranger.opens_asset("restore", "orders", view="partitions")
    stranger.sees("Materialized (0)")


def test_the_launchpad_shows_the_options_of_a_restore_and_writes_to_no_cluster(
    stranger: Stranger,
) -> None:
    """Shift and a click on Materialize open the editor of the configuration."""
    stranger.opens_groups("restore")
    stranger.page.get_by_role("button", name="Materialize all…").click(modifiers=["Shift"])
    stranger.confirms_before(stranger.page.get_by_role("button", name="Remove extra config"))
    editor = stranger.page.get_by_role("dialog").locator(".CodeMirror")
    for line in ('as_of: ""', "dry_run: true", "mode: state", 'point: ""', "target: dr"):
        expect(editor).to_contain_text(line)
    stranger.sees("No errors")


def test_the_job_restores_a_window_and_the_application_continues(
    stage: Stage, stranger: Stranger
) -> None:
    stranger.opens("/jobs")
    stranger.page.get_by_role("link", name=_JOB).click()
    stranger.sees("Restores order-processor as of a window")
    stranger.page.get_by_role("button", name="Materialize all…").click()
    stranger.chooses_the_window()
    stranger.takes("launch")
    stranger.launches()

    stranger.sees_in_the_log(
        "No blockers.", "records of 20 partitions are on the target", "like the backup"
    )
    stranger.page.get_by_role("button", name="Levels").click()
    stranger.page.get_by_role("menuitem", name="Event").click()  # what is left are our own lines
    stranger.page.keyboard.press("Escape")
    stranger.takes("run", top=True)
    stranger.opens_asset("restore", "restored_completeness", view="checks")
    stranger.sees("Holds at recovery point")
    stranger.takes("checks")
    stranger.opens_asset("restore", "orders", view="partitions")
    stranger.sees("Materialized (1)")

    assert stage.topics_on_target() == _TARGET_TOPICS
    first = IN_WINDOW + LATER
    with stage.processor_on(stage.target, "state-on-target"):
        stage.order(stage.target, first=first, count=AFTERWARDS)
        # The orders of the later window were not restored, and no order counts twice.
        sent = [*range(IN_WINDOW), *range(first, first + AFTERWARDS)]
        expected = customer_totals(stage.generator.orders(sent))
        assert await_totals(stage.target, "customer-totals", expected) == expected


def test_the_pages_show_backups_and_recovery_points(stage: Stage, stranger: Stranger) -> None:
    stranger.opens_asset("restorable")
    stranger.page.get_by_role("button", name="Materialize").first.click()
    stranger.goes_to_the_run()
    stranger.opens_asset("restorable")
    assert stranger.sees("newest_exact_point_age_s")
    points = stranger.sees("recovery_points")
    points.scroll_into_view_if_needed()
    stranger.takes("recovery-points")
    stranger.opens_asset("backup", "orders", view=f"partitions&partition={stage.window}")
    # The follower may have backed up a window after the restored one, with or without records.
    stranger.sees(re.compile(r"Materialized \([1-9]\d*\)"))
    stranger.sees("missing_offsets")
    stranger.takes("backup")
    stranger.opens_asset("backup", "orders", view="lineage&lineageScope=neighbors&lineageDepth=2")
    stranger.sees("restorable")
    stranger.takes("lineage")
