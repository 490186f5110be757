"""Whatever a table is rewritten with: without the key it is not signed, and that is reported."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from deltalake import DeltaTable, write_deltalake

from kstreams_assets.repository import table as tables
from kstreams_assets.repository.chain import METADATA, SIGNING_KEY, table_problems
from kstreams_assets.repository.table import Table
from tests.repository.test_table import Thing, rows


@dataclass(frozen=True)
class Signed:
    """A table whose first seven commits are signed."""

    table: Table[Thing]
    private: Path
    public: Path

    @property
    def path(self) -> Path:
        assert isinstance(self.table.path, Path)
        return self.table.path

    @property
    def log(self) -> Path:
        return self.path / "_delta_log"

    def entry(self, version: int) -> Path:
        return self.log / f"{version:020d}.json"

    def problems(self) -> list[tuple[str, str]]:
        found = table_problems(self.path, "things", public_key=self.public)
        return [(problem.file.removeprefix("_delta_log/"), problem.problem) for problem in found]


@pytest.fixture
def signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Signed:
    key = Ed25519PrivateKey.generate()
    private, public = tmp_path / "key.pem", tmp_path / "public.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    monkeypatch.setenv(SIGNING_KEY, str(private))
    made = Signed(Table(tmp_path / "warehouse" / "things", Thing, "number", "a"), private, public)
    for number in range(6):
        made.table.append(rows("a", number))
    assert made.problems() == []
    monkeypatch.delenv(SIGNING_KEY)
    return made


def _kept_rows(signed: Signed) -> pa.Table:
    """What whoever rewrites the table leaves of it."""
    return DeltaTable(str(signed.path)).to_pyarrow_table().slice(0, 2)


def _by_another_program(signed: Signed) -> None:
    kept = _kept_rows(signed)
    shutil.rmtree(signed.path)
    write_deltalake(str(signed.path), kept, partition_by=["application_id"])


def _by_another_program_that_knows_the_layout(signed: Signed) -> None:
    kept = _kept_rows(signed)
    shutil.rmtree(signed.path)
    DeltaTable.create(
        str(signed.path),
        kept.schema,
        partition_by=["application_id"],
        configuration={"kstreams_assets.layout": "2"},
        raise_if_key_not_exists=False,
    )
    write_deltalake(str(signed.path), kept, mode="append")


def _by_this_release_without_a_key(signed: Signed) -> None:
    shutil.rmtree(signed.path)
    for number in range(2):
        signed.table.append(rows("a", number))


def _with_links_of_its_own(signed: Signed) -> None:
    """Links without signatures in every entry, from version 0 on."""
    shutil.rmtree(signed.path)
    signed.table.append(rows("a", 1))
    for file in signed.log.glob("*.json"):
        assert METADATA in file.read_text()


def _with_signatures_cut_out(signed: Signed) -> None:
    for file in sorted(signed.log.glob("*.json")):
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        for action in actions:
            if "commitInfo" in action:
                link = json.loads(action["commitInfo"][METADATA])
                del link["signature"]
                action["commitInfo"][METADATA] = json.dumps(link)
        file.write_text("\n".join(map(json.dumps, actions)))


def _some_commits(signed: Signed) -> None:
    signed.table.append(rows("a", 9))


def _one_that_changes_no_file(signed: Signed) -> None:
    table = DeltaTable(str(signed.path))
    table.alter.set_table_properties({"delta.checkpointInterval": "7"})


def _a_deletion_by_another_program(signed: Signed) -> None:
    DeltaTable(str(signed.path)).delete("number > 1")


def _a_checkpoint_in_place_of_commits(signed: Signed) -> None:
    """Of the log the newest entry stays, and says nothing."""
    signed.table.rewrite(3, 5, lambda found: found.slice(0, 0))
    DeltaTable(str(signed.path)).create_checkpoint()
    newest = max(signed.log.glob("*.json"))
    for file in signed.log.glob("*.json"):
        if file != newest:
            file.unlink()
    newest.write_text(json.dumps({"commitInfo": {"timestamp": 0, "operation": "WRITE"}}))


def _a_checkpoint_of_another_kind(signed: Signed) -> None:
    """In parts, or with an id: readers take it in place of all entries before it."""
    DeltaTable(str(signed.path)).create_checkpoint()
    (made,) = signed.log.glob("*.checkpoint.parquet")
    found = pq.read_table(made)
    name = made.name.replace("checkpoint", "checkpoint.0000000001.0000000001")
    pq.write_table(found, made.with_name(name))
    made.unlink()
    (signed.log / "_last_checkpoint").unlink()


@pytest.mark.parametrize(
    "rewrite",
    [
        _by_another_program,
        _by_another_program_that_knows_the_layout,
        _by_this_release_without_a_key,
        _with_links_of_its_own,
        _with_signatures_cut_out,
        _some_commits,
        _one_that_changes_no_file,
        _a_deletion_by_another_program,
        _a_checkpoint_in_place_of_commits,
        _a_checkpoint_of_another_kind,
    ],
    ids=lambda rewrite: rewrite.__name__.strip("_"),
)
class TestRewritten:
    def test_it_is_reported(self, signed: Signed, rewrite: Callable[[Signed], None]) -> None:
        rewrite(signed)
        assert signed.problems()

    def test_a_signed_commit_on_top_does_not_vouch_for_it(
        self,
        signed: Signed,
        rewrite: Callable[[Signed], None],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Also once all entries before it have expired."""
        rewrite(signed)
        monkeypatch.setenv(SIGNING_KEY, str(signed.private))
        monkeypatch.setattr(tables, "_RETENTION_NS", -(10**12))
        try:
            signed.table.append(rows("a", 10))
            signed.table.append(rows("a", 11))
            signed.table.tidy()
        except Exception:  # noqa: BLE001 (readers and writers refuse it already)
            assert signed.problems()
            return
        assert signed.problems()


def test_every_entry_of_a_rewritten_log_is_named(signed: Signed) -> None:
    _by_this_release_without_a_key(signed)
    versions = [int(file.stem) for file in sorted(signed.log.glob("*.json"))]
    assert signed.problems() == [(f"{v:020d}.json", "is not signed") for v in versions]


class TestACommitThatNobodySigned:
    def test_is_reported_for_as_long_as_the_table_stands(
        self, signed: Signed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _some_commits(signed)
        last = max(int(file.stem) for file in signed.log.glob("*.json"))
        wanted = [(f"{last:020d}.json", "is not signed")]
        monkeypatch.setenv(SIGNING_KEY, str(signed.private))
        for number in range(10, 13):
            signed.table.append(rows("a", number))
            assert signed.problems() == wanted
        monkeypatch.setattr(tables, "_RETENTION_NS", -(10**12))
        signed.table.tidy()
        assert not signed.entry(last).exists()
        assert signed.problems() == wanted

    def test_the_version_that_is_carried_on_is_signed_itself(
        self, signed: Signed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _some_commits(signed)
        monkeypatch.setenv(SIGNING_KEY, str(signed.private))
        signed.table.append(rows("a", 10))
        newest = max(signed.log.glob("*.json"))

        def without(action: dict[str, Any]) -> dict[str, Any]:
            if "commitInfo" in action:
                link = json.loads(action["commitInfo"][METADATA])
                assert link.pop("unsigned") is not None
                action["commitInfo"][METADATA] = json.dumps(link)
            return action

        actions = [without(json.loads(line)) for line in newest.read_text().splitlines()]
        newest.write_text("\n".join(map(json.dumps, actions)))
        assert (newest.name, "has a signature of another key") in signed.problems()


def test_a_table_that_was_always_signed_stays_clean(
    signed: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SIGNING_KEY, str(signed.private))
    monkeypatch.setattr(tables, "_RETENTION_NS", -(10**12))
    for number in range(10, 13):
        signed.table.append(rows("a", number))
        signed.table.tidy()
        assert signed.problems() == []
