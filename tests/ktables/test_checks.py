"""The checks of KTables."""

from kstreams_assets.checks import Severity
from kstreams_assets.ktables.checks import every_row_decodes, snapshot_is_proved
from kstreams_assets.model.point import Guarantee
from kstreams_assets.model.snapshot import RowProblem
from tests.ktables.samples import snapshot


def test_rows_that_do_not_decode_are_named_and_counted() -> None:
    problems = [RowProblem(0, n, "key: 7 bytes where a long has 8") for n in range(12, 20)]
    verdict = every_row_decodes(snapshot(problems=problems, problem_rows=900, rows=1000))
    assert not verdict.passed
    assert verdict.severity is Severity.ERROR
    assert verdict.explanation.startswith(
        "900 of 1,000 rows could not be decoded: shop-totals-changelog-0 offset 12: key: 7 bytes"
        " where a long has 8; shop-totals-changelog-0 offset 13"
    )
    assert "offset 16" in verdict.explanation
    assert "offset 17" not in verdict.explanation
    assert "; and 895 more." in verdict.explanation
    assert verdict.numbers == {"rows": 1000, "problem_rows": 900}


def test_a_snapshot_that_compaction_may_have_thinned_is_red() -> None:
    weak = snapshot(proved=False, reason="shop-totals-changelog-0 had holes from offset 7 on.")
    for guarantee in (Guarantee.EXACT, None):
        verdict = snapshot_is_proved(weak, guarantee)
        assert (verdict.passed, verdict.severity) == (False, Severity.ERROR)
        assert "had holes from offset 7 on. Keys may be missing." in verdict.explanation


def test_a_snapshot_of_a_point_that_is_not_exact_is_a_warning() -> None:
    weak = snapshot(proved=False, reason="The application is at_least_once.")
    verdict = snapshot_is_proved(weak, Guarantee.AT_LEAST_ONCE)
    assert (verdict.passed, verdict.severity) == (False, Severity.WARN)
    assert "The application is at_least_once. The table may be" in verdict.explanation
