"""Files of users keep their meaning: no key of the YAML goes, and wrong ones are named.

`python -m tests.contract.test_yaml` writes `yaml.json` anew when something was added.
"""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kstreams_assets.app_file.read import load_settings
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError
from scripts.reference.yaml_page import yaml_lines

FILE = Path(__file__).with_name("yaml.json")
STORED: Mapping[str, Any] = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}

BASE = """type: kstreams_assets.components.KafkaStreamsAppComponent
attributes:
  application_id: shop
  connection: {bootstrap_servers: "localhost:1"}
  warehouse: /nowhere/warehouse
  windows: {every: hour, start: "2026-11-01"}
  topics:
    in: {roles: [input], key: string, value: {format: json, schema: "a BIGINT, c STRING"}}
    shop-s-changelog: {roles: [changelog]}
    out: {roles: [output]}
"""

WRONG = [
    "applicaton: x",
    "warehous: x",
    "mode: half",
    "include: [nope]",
    "exclude: [nope]",
    "exclude: ['*']",
    "keep: {daily: 30m}",
    "keep: {all: 2 fortnights}",
    "include: in",
    "topology: nowhere.txt",
    "inputs: [in, 3]",
    "not_mine: in",
    "owners: 7",
    "owners: [team:shop, orders]",
    "tags: [a]",
    "tags: {a: \"{{ env('NOT_THERE_AT_ALL') }}\"}",
    'description: "{{ nope }}"',
    "sensors: perhaps",
    "backup: {codec: 1}",
    "backup: {commit_bytes: many}",
    "backup: {scan_connections: 0}",
    "backup: {scan_stall_seconds: 0.5}",
    "backup: {bytes_per_second: 0}",
    "backup: {part_bytes: 0}",
    "backup: {tasks: 0}",
    "backup: 3",
    "restore: {before_command: ' '}",
    'restore: {after_command: "kubectl \'x"}',
    "restore: {command_timeout_seconds: 0}",
    "restore: {pass_on: HOME}",
    "restore: {dry-run: true}",
    "recovery_points: {every_seconds: 0}",
    "recovery_points: {every_seconds: soon}",
    "recovery_points: {objective_seconds: 5}",
    "recovery_points: {objective_secnds: 5}",
    "recovery_points: {keep_all_hours: -1}",
    "recovery_points: {keep_all_hours: .inf}",
    "recovery_points: {seal_mib: -1}",
    "recovery_points: {closing_seal_mib: -1}",
    "recovery_points: {lookback_seconds: 0}",
    "recovery_points: {lookback_seconds: .nan}",
    "restore: {compression: best}",
    "restore: {verify: some}",
    "restore: {delivery_timeout_seconds: 0}",
    "restore: {lock_wait_seconds: -1}",
    "restore: {target: {bootstrap_servers: x}}",
    'restore: {target: {bootstrap_server: "a:1"}}',
    "schema_registry: {}",
    "schema_registry: {uri: 'http://a:1'}",
    "schema_registry: {url: nowhere}",
    "stores: {s: {}}",
    "stores: {nope: {key: string}}",
    "stores: {s: {formt: x}}",
    "stores: {s: {key: text}}",
    "stores: {s: {key: {schema: x}}}",
    "stores: {s: {key: {format: long, schema: a INT}}}",
    "stores: {s: {value: json}}",
    "stores: {s: {value: {format: json, scheme: a INT}}}",
    "stores: {s: {value: {format: json, schema: ''}}}",
    "stores: {s: {value: {format: json, schema: 'a b c'}}}",
    "stores: {s: {kind: heap}}",
    "stores: {s: {kind: window, key: string}}",
    "stores: {s: {kind: window, retention_ms: 0}}",
    "stores: {s: {kind: window, windowed_keys: window}}",
    "stores: {s: {key: string, window_size_ms: 5}}",
    "stores: {s: {key: string, ktable: maybe}}",
    "stores: {s: {changelog: shop-s-changelog, logging_disabled: true}}",
    "stores: {s: {changelog: a, source_topic: b}}",
    "stores: {s: {key: string, windowed_keys: window}}",
    "stores: {s: {kind: suppress, windowed_keys: versioned}}",
    "stores: {s: {key: string, lineage: {b: [in.a]}}}",
    "stores: {s: {key: string, lineage: {'': []}}}",
    "stores: {s: {key: string, lineage: {'': [.]}}}",
    "stores: {s: {value: {format: json, schema: cents INT}, lineage: {cent: [in.a]}}}",
    "stores: {s: {key: string, window_size_ms: long}}",
    "stores: {s: {key: string, value: long, recompute: {}}}",
    "stores: {s: {key: string, value: long, recompute: {source: nope}}}",
    "stores: {s: {key: string, value: long, recompute: {source: in, values: max(a)}}}",
    "stores: {s: {value: {format: json, schema: n INT},"
    " recompute: {source: in, values: {euros: count(*)}}}}",
    "stores: {s: {key: string, value: long, recompute: {source: in, windowed_by: {size: 1}}}}",
    "completeness: [{sql: SELECT 1}]",
    "completeness: [{name: a}]",
    "completeness: [{name: a-b, sql: SELECT 1}]",
    "completeness: [{name: recompute_s, sql: SELECT 1}]",
    "completeness: [{name: a, sql: SELECT 1, balance: in == out}]",
    "completeness: [{name: a, sqll: SELECT 1}]",
    "completeness: [{name: a, sql: SELECT * FROM nowhere}]",
    "completeness: [{name: a, sql: SELECT * FROM inn}]",
    "exclude: [out]\n  completeness: [{name: a, sql: SELECT 1 FROM out}]",
    "completeness: [{name: a, sql: SELECT a FROM in, per: _key}]",
    "completeness: [{name: a, balance: in == nowhere}]",
    "completeness: [{name: a, balance: in == out, per: euros}]",
    "completeness: [{name: a, balance: in == out, on: []}]",
    "completeness: [{name: a, balance: in == out, on: [moon]}]",
    "completeness: [{name: a, balance: in == out, severity: bad}]",
    "completeness: [{name: a, balance: in == out, scope: all}]",
    "completeness: [{name: a, balance: in == out, timeout_seconds: 0}]",
    "completeness: [{name: a, balance: in == out, max_rows: 0}]",
    "completeness: [{name: a, balance: in == out, max_rows: 3000000000}]",
    "completeness: [{name: a, balance: in == out, max_memory_mib: 0}]",
    "completeness: [{name: a, balance: in == out}, {name: a, balance: out == in}]",
    "completeness: {name: a}",
    "governance: {objective: 3}",
    "governance: {inputs: [nope]}",
    "governance: {outputs: [nope]}",
    "governance: {stores: [nope]}",
    "governance: {internal_topics: [nope]}",
    "governance: {partitions: {in: 0}}",
    "governance: {partitions: {nope: 1}}",
    "governance: {replication_factor: 0}",
    "governance: {min_insync_replicas: 0}",
    "governance: {rebuild_hours: -1}",
    "governance: {rebuild_hours: .inf}",
    "governance: {limits: {max_tombstone_share: 2}}",
    "governance: {limits: {max_lag_records: -1}}",
    "governance: {limits: {max_partition_share: -0.1}}",
    "governance: {limits: {max_store_growth: -0.1}}",
    "governance: {limits: {max_lag: 2}}",
    "governance: {every: sometimes}",
    "governance: {every: '61 * * * *'}",
    "drill: {every: sometimes, command: [x]}",
    "drill: {every: '0 4 * * 0'}",
    "drill: {command: x}",
    "drill: {command: ['{nope}']}",
    "drill: {command: [run, '{state_dir}']}",
    "drill: {start_timeout_seconds: 0}",
    "drill: {catch_up_timeout_seconds: .inf}",
    "drill: {objective_seconds: .inf}",
    "drill: {running_line: '('}",
    "drill: {commnd: [x]}",
]
REPLACED = {
    "windows: {every: hour}": "windows",
    "windows: {every: hour, start: 2026-11-01}": "windows",
    "windows: {every: hour, start: 2026-11-01 13:30:00}": "windows",
    "windows: {every: hour, start: soon}": "windows",
    'windows: {every: hour, start: "2026-11-01", zone: UTC}': "windows",
    'windows: {start: "2026-11-01"}': "windows",
    'windows: {every: never, start: "2026-11-01"}': "windows",
    'windows: {every: "* * *", start: "2026-11-01"}': "windows",
    'windows: {every: hour, start: "2026-11-01", timezone: Europe/Berlin}': "windows",
    'windows: {every: day, start: "2026-11-01", timezone: Moon/Sea}': "windows",
    "connection: {bootstrap_servers: a}": "connection",
    'connection: {bootstrap_servers: "a:1", x: 1}': "connection",
    'connection: {bootstrap_servers: "a:1", sasl: {mechanism: MAGIC}}': "connection",
    'connection: {bootstrap_servers: "a:1", request_timeout_seconds: 0}': "connection",
    "connection: \"{{ env('NOT_THERE_AT_ALL') }}\"": "connection",
    "topics: {in: {roles: [inptu]}}": "topics",
    "topics: {in: {}}": "topics",
    "topics: {in: {role: input}}": "topics",
    "topics: {in: {key: text, roles: [input]}}": "topics",
    "warehouse: gs://bucket": "warehouse",
    "warehouse: [a]": "warehouse",
    "application_id: ''": "application_id",
}
DOCUMENTS = {
    **{wrong: f"{BASE}  {wrong}\n" for wrong in WRONG},
    **{
        wrong: re.sub(
            rf"^  {key}:.*\n(    .*\n)*", lambda _, w=wrong: f"  {w}\n", BASE, flags=re.MULTILINE
        )
        for wrong, key in REPLACED.items()
    },
}


def test_every_key_has_the_default_it_had() -> None:
    assert dict(_keys()) == STORED["keys"]


def test_former_names_of_keys_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "defs.yaml"
    for key in ("state_in", "notes_in"):
        path.write_text(f"{BASE}  {key}: {tmp_path}/state\n", encoding="utf-8")
        assert str(load_settings(path).warehouse.state_in) == f"{tmp_path}/state"
        given = load_settings(path, state_in=str(tmp_path / "other"))
        assert str(given.warehouse.state_in) == f"{tmp_path}/other"
    path.write_text(f"{BASE}  state_in: /a\n  notes_in: /a\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="notes_in"):
        load_settings(path)


@pytest.mark.parametrize("wrong", DOCUMENTS)
def test_what_is_wrong_is_told_with_its_place(wrong: str, tmp_path: Path) -> None:
    assert _said(DOCUMENTS[wrong], tmp_path) == STORED["wrong"][wrong]


def _said(document: str, folder: Path) -> str:
    """What the command line says, of wrong types the place alone."""
    path = folder / "defs.yaml"
    path.write_text(document, encoding="utf-8")
    try:
        WindowCalendar(load_settings(path).windows)
    except KStreamsAssetsError as error:
        text = str(error).replace(str(folder), "")
        return re.sub(
            r": (Input should|Field required|Value error).*", ": is of a wrong type", text
        )
    return "is accepted"


def _keys() -> Iterator[tuple[str, str]]:
    """Keys with their blocks, and what the reference says of their defaults."""
    block = ""
    for line in yaml_lines():
        if line.startswith("## "):
            block = line.removeprefix("## ")
        elif line.startswith("| `") and block[:1].islower():
            key, _, default, *_ = (cell.strip() for cell in line.strip("|").split(" | "))
            yield f"{block}: {key.strip('`')}", default


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        written = {
            "keys": dict(_keys()),
            "wrong": {wrong: _said(text, Path(made)) for wrong, text in DOCUMENTS.items()},
        }
    FILE.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
