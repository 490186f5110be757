"""Restores read back from a real broker: whatever was changed is named, and nothing else."""

import re
from dataclasses import dataclass

import pytest

from kstreams_assets.restore.verify import VerifyResult
from tests.backup.writing import RawRecord
from tests.restore.verifying import EXTRA, Restored, Tamper, Workplace, change

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.on_store,
]


def swap(rows: dict[int, list[RawRecord]]) -> None:
    """Swap two neighbours."""
    rows[1][30], rows[1][31] = rows[1][31], rows[1][30]


def to_other_partition(rows: dict[int, list[RawRecord]]) -> None:
    """Put a record where it does not belong."""
    rows[0].insert(20, rows[1].pop(45))


THREE = (("a", b"31"), ("a", b""), ("é", None))
TAMPERED: dict[str, tuple[Tamper, list[str]]] = {
    "nothing": (lambda _: None, []),
    "value": (
        change(1, 30, value=b"other"),
        [r"1 offset 30: value is 5 bytes \(sha256 d9298a10\) instead of 3 bytes \(sha256 \w{8}\)"],
    ),
    "key": (change(1, 30, key=b"other"), ["1 offset 30: key is 5 bytes .* instead of 2 bytes"]),
    "timestamp": (change(0, 0, timestamp_ms=7), ["0 offset 0: timestamp is 7 instead of 1000000"]),
    "header value": (
        change(1, 31, headers=(("a", b"30"), *THREE[1:])),
        [r"1 offset 31: header 1 of 3: value is 2 bytes .* instead of 2 bytes"],
    ),
    "header name": (
        change(1, 31, headers=(*THREE[:2], ("e", None))),
        ["1 offset 31: header 3 of 3 has another name"],
    ),
    "header order": (
        change(1, 31, headers=(THREE[1], THREE[0], THREE[2])),
        ["1 offset 31: its 3 headers have another order"],
    ),
    "duplicate header gone": (
        change(1, 31, headers=(THREE[0], THREE[2])),
        ["1 offset 31: has 2 headers instead of 3"],
    ),
    "null header is empty": (
        change(1, 31, headers=(*THREE[:2], ("é", b""))),
        ["1 offset 31: header 3 of 3: value is empty instead of null"],
    ),
    "headers added": (change(1, 30, headers=THREE), ["1 offset 30: has 3 headers instead of 0"]),
    "null value is empty": (
        change(0, 3, value=b""),
        ["0 offset 3: value is empty instead of null"],
    ),
    "empty value is null": (
        change(0, 4, value=None),
        ["0 offset 4: value is null instead of empty"],
    ),
    "null key is empty": (change(0, 1, key=b""), ["0 offset 1: key is empty instead of null"]),
    "swapped": (
        swap,
        [
            "1 offset 30: is swapped with the record at offset 31",
            "1 offset 31: is swapped with the record at offset 30",
        ],
    ),
    "missing": (
        lambda rows: rows[0].pop(17),
        [
            "0 offset 59: the log ends here, it must end at 60: 1 are missing",
            r"0 offset 17: a record is missing here \(source offset 520\)",
        ],
    ),
    "last missing": (
        lambda rows: rows[0].pop(),
        [
            "0 offset 59: the log ends here, it must end at 60: 1 are missing",
            r"0 offset 59: a record is missing here \(source offset 574\)",
        ],
    ),
    "extra at the end": (
        lambda rows: rows[1].append(EXTRA),
        [
            "1 offset 60: the restored records end here, 1 more offsets follow",
            "1 offset 60: holds a record that is not in the backup",
        ],
    ),
    "extra in the middle": (
        lambda rows: rows[1].insert(33, EXTRA),
        [
            "1 offset 60: the restored records end here, 1 more offsets follow",
            "1 offset 33: holds a record that is not in the backup",
        ],
    ),
    "wrong partition": (
        to_other_partition,
        [
            "0 offset 60: the restored records end here, 1 more offsets follow",
            "1 offset 59: the log ends here, it must end at 60: 1 are missing",
            "0 offset 20: holds a record that is not in the backup",
            "1 offset 45: a record is missing here",
        ],
    ),
}


@dataclass
class Tampered:
    """Every kind of tampering, each on a topic of its own, verified together."""

    topics: dict[str, Restored]
    result: VerifyResult


@pytest.fixture(scope="module")
def tampered(workplace: Workplace) -> Tampered:
    """All of `TAMPERED`."""
    topics = {name: workplace.restore(tamper) for name, (tamper, _) in TAMPERED.items()}
    return Tampered(topics, workplace.verify(*topics.values()))


@pytest.mark.parametrize("name", TAMPERED)
def test_what_was_tampered_with_is_named_and_nothing_else(tampered: Tampered, name: str) -> None:
    topic = tampered.topics[name]
    problems = [p for p in tampered.result.problems if p.target.topic == topic.plan.target]
    expected = TAMPERED[name][1]

    assert len(problems) == len(expected), problems
    for problem, pattern in zip(problems, expected, strict=True):
        assert re.match(f"{topic.plan.target}-{pattern}", str(problem)), problem
    assert not tampered.result.passed


def test_the_verdict_names_the_first_problems_and_what_to_do(tampered: Tampered) -> None:
    text = tampered.result.explanation()

    assert text.startswith("The target differs from the backup (")
    assert "more are in the log. No group offsets are committed." in text
    assert text.endswith("delete the restored topics and run the restore again.")
    assert "other" not in text.replace("another", "")
