"""Reads the YAML of an application outside Dagster."""

from pathlib import Path
from typing import Any

import pytest

from kstreams_assets.app_file.read import load_settings
from kstreams_assets.errors import ConfigurationError
from tests.cli.application import document, write

SECRET = "hunter2-do-not-show"


_YAML = """type: kstreams_assets.components.KafkaStreamsAppComponent
attributes:
  application_id: shop
  connection:
    bootstrap_servers: localhost:1
  warehouse: /nowhere/warehouse
  windows:
    every: hour
    start: "2026-10-20"
  topics:
    t: {roles: [input]}
    u.v: {roles: [output]}
"""


def _fails(path: Path, **options: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(path, **options)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    assert "Traceback" not in text
    return text


class TestLoad:
    """What a good file gives."""

    def test_settings(self, tmp_path: Path) -> None:
        settings = load_settings(write(tmp_path / "defs.yaml", document(exclude=["u"])))
        assert settings.application_id == "shop"
        assert [topic.name for topic in settings.topics] == ["t"]
        assert [topic.name for topic in settings.application.topics] == ["t", "u"]
        assert settings.warehouse.root == Path("/nowhere/warehouse")
        assert settings.windows.cron == "0 * * * *"

    def test_overrides(self, tmp_path: Path) -> None:
        connection = {"bootstrap_servers": "a:1", "request_timeout_seconds": 7}
        settings = load_settings(
            write(tmp_path / "defs.yaml", document(connection=connection)),
            bootstrap_servers="b:2,c:3",
            warehouse=str(tmp_path / "w"),
        )
        assert settings.connection.bootstrap_servers == "b:2,c:3"
        assert settings.connection.request_timeout_seconds == 7
        assert settings.warehouse.root == tmp_path / "w"

    def test_an_override_stands_in_for_what_the_file_lacks(self, tmp_path: Path) -> None:
        said = document()
        del said["attributes"]["connection"], said["attributes"]["warehouse"]
        path = write(tmp_path / "defs.yaml", said)
        settings = load_settings(path, bootstrap_servers="b:2", warehouse="/w")
        assert settings.connection.bootstrap_servers == "b:2"

    def test_several_documents(self, tmp_path: Path) -> None:
        other = {"type": "dagster.DefsFolderComponent", "attributes": {"x": 1}}
        path = write(tmp_path / "defs.yaml", document("one"), other, document("two"))
        assert load_settings(path, application_id="two").application_id == "two"
        assert "2 applications (one, two)" in _fails(path)
        assert "no application of type" in _fails(path, application_id="three")

    def test_templates(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WAREHOUSE", "/from/environment")
        monkeypatch.delenv("START", raising=False)
        windows = {"every": "hour", "start": "{{ env('START', '2026-11-01') }}"}
        said = document(warehouse="{{ env('WAREHOUSE') }}", windows=windows)
        settings = load_settings(write(tmp_path / "defs.yaml", said))
        assert settings.warehouse.root == Path("/from/environment")
        assert settings.windows.start == "2026-11-01"

    def test_the_topology_lies_beside_the_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "topology.txt").write_text(
            "Topologies:\n   Sub-topology: 0\n    Source: s (topics: [in])\n      --> k\n"
            "    Sink: k (topic: out)\n      <-- s\n"
        )
        said = document(topology="topology.txt", topics={})
        path = write(tmp_path / "defs.yaml", said)
        monkeypatch.chdir("/")
        assert [topic.name for topic in load_settings(path).topics] == ["in", "out"]


class TestErrors:
    """One line, with the file and what is wrong in it."""

    def test_no_file(self, tmp_path: Path) -> None:
        assert "No such file" in _fails(tmp_path / "defs.yaml")
        assert "Is a directory" in _fails(tmp_path)

    @pytest.mark.parametrize("text", ["a: [", "\tx: 1", "a: {{ b }}: c", "type: \x00"])
    def test_not_yaml(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "defs.yaml"
        path.write_text(text)
        _fails(path)

    def test_not_text(self, tmp_path: Path) -> None:
        path = tmp_path / "defs.yaml"
        path.write_bytes(b"\xff\xfe\x00\xd8")
        _fails(path)

    @pytest.mark.parametrize(
        "content",
        [
            {},
            {"type": "dagster.DefsFolderComponent", "attributes": {}},
            {"type": "kstreams_assets.components.KafkaStreamsAppComponent"},
            {"type": "kstreams_assets.components.KafkaStreamsAppComponent", "attributes": []},
        ],
    )
    def test_no_application(self, tmp_path: Path, content: dict[str, Any]) -> None:
        assert "no application of type" in _fails(write(tmp_path / "defs.yaml", content))

    def test_a_key_that_stands_twice(self, tmp_path: Path) -> None:
        path = tmp_path / "defs.yaml"
        path.write_text(_YAML + "  tags:\n    a: b\n    a: c\n")
        with pytest.raises(ConfigurationError, match=r"line 15: the key a occurs twice.* line 14"):
            load_settings(path)

    @pytest.mark.parametrize(
        ("lines", "texts"),
        [
            (
                ["recovery_points:", "  objective_secnds: 5"],
                ["line 14, recovery_points.objective_secnds: unknown key (near: objective_sec"],
            ),
            (["recovery_points:", "  objective_seconds: soon"], ["line 14, recovery_points.obj"]),
            (["recovery_points:", "  objective_seconds: 5"], ["line 14: recovery_points.obj"]),
            (["warehous: x"], ["line 13, warehous: unknown key (near: warehouse)"]),
            (["restore:", "  target: {bootstrap_servers: x}"], ["line 14, restore.target.boot"]),
            (["restore:", "  target: {", "    bootstrap_server: a:1}"], ["line 15, restore.tar"]),
            (["restore:", "  target: dr"], ["line 14", "restore.target is 'dr', which is not"]),
            (["restore:", "  target: [dr]"], ["line 14, restore.target: Input should be a"]),
            (
                ["targets:", "  dr: {}", "restore:", "  before_command: 'true'"],
                ["line 16", "restore.before_command is set, but restores use targets."],
            ),
            (
                ["targets:", "  local:", "    connection: {bootstrap_servers: a:1}"],
                ["line 14", "targets.local has a connection"],
            ),
            (
                ["targets: {default: {}}", "restore:", "  target: {bootstrap_servers: a:1}"],
                ["line 13", "targets.default is declared, but restore.target describes"],
            ),
            (["targets: {'a b': {}}"], ["line 13", "'a b' is not the name of a target"]),
            (["targets: {dr: {prefix: 'a b'}}"], ["line 13: targets.dr.prefix is 'a b'."]),
            (["targets: {dr: {before_command: ls}}"], ["targets.dr has a command but no conn"]),
            (["targets: {dr: {conection: {}}}"], ["targets.dr.conection: unknown key (near: conn"]),
            (["governance:", "  objective: 3"], ["line 14, governance.objective: unknown key"]),
            (["completeness:", "- name: a", "  sqll: SELECT 1"], ["line 15", "(near: sql)"]),
            (["stores:", "  s:", "    formt: x"], ["line 15, stores.s.formt: unknown key"]),
            (["exclude: [u.v]", "include:", "- nope"], ["line 15, include: The include pattern"]),
            (
                ["tags: {nope: nope}", "governance:", "  outputs: [u.v]", "  inputs:", "  - nope"],
                ["line 17, governance.inputs: The declared input 'nope'"],
            ),
            (
                ["tags: {n: n}", "stores:", "  totals: {source_topic: n}", "  n: {key: string}"],
                ["line 16, stores: The declared store 'n'"],
            ),
            (["tags:", "  a: \"{{ env('NOT_THERE_AT_ALL') }}\""], ["line 14, tags.a: Environment"]),
            (
                ["spark:", "  from_offsets: -1"],
                ["line 14: spark.from_offsets is -1. Give a number of at least 0."],
            ),
            (["spark:", "  from_ofsets: 1"], ["line 14, spark.from_ofsets: unknown key (near"]),
            (["backup: [", "  x: {"], ["line 15", "not YAML"]),
        ],
    )
    def test_the_line_the_key_and_near_names(
        self, tmp_path: Path, lines: list[str], texts: list[str]
    ) -> None:
        path = tmp_path / "defs.yaml"
        path.write_text(_YAML + "".join(f"  {line}\n" for line in lines))
        said = _fails(path)
        for text in texts:
            assert text in said
        for noise in ("<string>", "<unicode", "Model", "`dg", "connection:"):
            assert noise not in said

    def test_what_stands_on_the_command_line_is_not_blamed_on_the_file(
        self, tmp_path: Path
    ) -> None:
        path = write(tmp_path / "defs.yaml", document())
        for options in ({"bootstrap_servers": "nowhere"}, {"warehouse": "gs://bucket"}):
            with pytest.raises(ConfigurationError) as caught:
                load_settings(path, **options)
            assert "defs.yaml" not in str(caught.value)

    def test_what_stands_in_clear_is_not_repeated(self, tmp_path: Path) -> None:
        sasl = {"mechanism": "PLAIN", "username": "u", "password": SECRET}
        connection = {
            "bootstrap_servers": "a:1",
            "security_protocol": "SASL_SSL",
            "sasl": sasl,
        }
        for said in (
            document(connection=connection),
            document(connection={**connection, "pasword": SECRET}),
            document(password=SECRET),
        ):
            assert SECRET not in _fails(write(tmp_path / "defs.yaml", said))

    @pytest.mark.parametrize("key", ["warehouse", "state_in", "notes_in", "second_copy"])
    def test_paths_that_libraries_read_unlike(self, tmp_path: Path, key: str) -> None:
        place = str(tmp_path / "share%20of/w")
        copy = {"to": place, "every": "0 * * * *"}
        said: dict[str, Any] = {key: copy if key == "second_copy" else place}
        with pytest.raises(ConfigurationError, match=r"share%20of.* do not agree on the folder"):
            load_settings(write(tmp_path / "defs.yaml", document(**said)))
        assert not (tmp_path / "share%20of").exists()

    def test_contradictions_are_errors_of_their_own(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"topology file .* does not exist"):
            load_settings(write(tmp_path / "defs.yaml", document(topology="x.txt")))
