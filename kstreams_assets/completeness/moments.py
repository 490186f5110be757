"""Finds the recovery points that rules are evaluated at; reads the ledger, no JVM."""

from collections.abc import Collection, Iterable
from functools import cached_property

from kstreams_assets.completeness.content import Moment
from kstreams_assets.errors import RecoveryPointNotFoundError
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.ledger import Ledger
from kstreams_assets.warehouse.point import RecoveryPoint
from kstreams_assets.warehouse.points import RecoveryPointTable, at_edges
from kstreams_assets.warehouse.spans import Window


class Moments:
    """Points and windows of one application, as the ledger knew them at first use."""

    def __init__(self, settings: ApplicationSettings, topics: Collection[str]) -> None:
        self._application_id = settings.application_id
        self._ledger = Ledger(settings.warehouse, settings.application_id)
        self._table = RecoveryPointTable(settings.warehouse)
        self._topics = topics
        self._points: dict[str, RecoveryPoint] = {}

    def of_window(self, window: Window) -> Moment | None:
        """The point that ends a window and that of the window before; None if not backed up."""
        point = self._load(self._closing.get(window))
        if point is None:
            return None
        return Moment(point, self._before(window), window.key)

    def of_point(self, point_id: str) -> Moment:
        """A point, and the last one before it that ends a window.

        Raises:
            RecoveryPointNotFoundError: There is no point with this id.
        """
        for window, closing in self._closing.items():
            if closing == point_id and (moment := self.of_window(window)) is not None:
                return moment
        point = self._load(point_id)
        if point is None:
            raise RecoveryPointNotFoundError(application_id=self._application_id, point_id=point_id)
        ended = [w for w in self._closing if w.end_ms <= point.effective_at_ms]
        before = self._load(self._closing[max(ended)]) if ended else None
        return Moment(point, before)

    def point(self, point_id: str) -> RecoveryPoint | None:
        """A point by its id, None where it is not there (any more)."""
        return self._load(point_id)

    def prefetch(self, point_ids: Iterable[str]) -> None:
        """Load points at once that will be asked for one by one."""
        wanted = [point_id for point_id in point_ids if point_id not in self._points]
        found = self._table.load(self._application_id, wanted) if wanted else []
        self._points |= {point.id: point for point in found}

    @cached_property
    def _closing(self) -> dict[Window, str]:
        """The recovery point (id) that bounds each window."""
        by_topic = self._ledger.closing_points(self._topics)
        return {
            window: point_id
            for _, closing in sorted(by_topic.items())
            for window, point_id in closing.items()
            if point_id is not None
        }

    def _before(self, window: Window) -> RecoveryPoint | None:
        adjacent = [w for w in self._closing if w.end_ms == window.start_ms]
        if adjacent:
            return self._load(self._closing[adjacent[0]])
        earlier = at_edges(self._table.instants(self._application_id), [window.start_ms])
        return self._load(next(iter(earlier), None))

    def _load(self, point_id: str | None) -> RecoveryPoint | None:
        if point_id is None:
            return None
        self.prefetch([point_id])
        return self._points.get(point_id)
