"""The real YAML of an example application, with the names that one test run gives it."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import examples
from examples.streams.application import Example
from kstreams_assets.app_file.read import application_model
from kstreams_assets.settings import ApplicationSettings

_DEFINITIONS = Path(examples.__file__).parent / "defs"
_DECLARED_TOPICS = ("inputs", "outputs")
_LISTS_OF_TOPICS = ("inputs", "outputs", "not_mine", "include", "exclude")


@dataclass(frozen=True, slots=True)
class Definition:
    """The folder `examples/defs/<folder>` of an example.

    `attributes` replace those of the YAML, such as the address of a schema registry.
    """

    example: Example
    folder: str
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Where the YAML and the topology text lie."""
        return _DEFINITIONS / self.folder

    def settings(
        self, bootstrap_servers: str, application_id: str, prefix: str, folder: Path
    ) -> ApplicationSettings:
        """What the YAML says, with another application id and a prefix of all other topics.

        The topology text is that of the application as it runs with the prefix. The warehouse is
        `folder/warehouse`, windows begin today.
        """
        said = yaml.safe_load((self.path / "defs.yaml").read_text("utf-8"))["attributes"]
        names = _Names(self.example, application_id, prefix)
        said |= {
            "application_id": application_id,
            "connection": {"bootstrap_servers": bootstrap_servers, "request_timeout_seconds": 30},
            "warehouse": str(folder / "warehouse"),
            "windows": said["windows"] | {"start": time.strftime("%Y-%m-%d", time.gmtime())},
            "topology": "topology.txt",
        }
        said |= {key: list(map(names.of, said[key])) for key in _LISTS_OF_TOPICS if key in said}
        if "topics" in said:
            said["topics"] = {names.of(topic): about for topic, about in said["topics"].items()}
        if "stores" in said:
            said["stores"] = {s: names.of_store(about) for s, about in said["stores"].items()}
        if "governance" in said:
            said["governance"] = names.of_governance(said["governance"])
        if "completeness" in said:
            said["completeness"] = [names.of_rule(rule) for rule in said["completeness"]]
        text = self.example.describe_topology(topic_prefix=prefix)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "topology.txt").write_text(text, "utf-8")
        component = application_model(said | dict(self.attributes))
        return component.settings(folder)


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of topics as one run has them."""

    example: Example
    application_id: str
    prefix: str

    def of(self, name: str) -> str:
        """The name of a topic, or of a field behind it (`topic.field`)."""
        own = f"{self.example.application_id}-"
        if name.startswith(own):
            return f"{self.application_id}-{name.removeprefix(own)}"
        known = any(name == t or name.startswith(f"{t}.") for t in self.example.topics)
        return self.prefix + name if known else name

    def of_store(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """What is said about a store."""
        renamed = dict(about)
        for key in ("changelog", "source_topic"):
            if key in about:
                renamed[key] = self.of(about[key])
        if "lineage" in about:
            renamed["lineage"] = {
                column: list(map(self.of, sources)) for column, sources in about["lineage"].items()
            }
        if "recompute" in about:
            source = self.of(about["recompute"]["source"])
            renamed["recompute"] = {**about["recompute"], "source": source}
        return renamed

    def of_rule(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """A completeness rule: topics in a balance, in backticks, and bare after FROM and JOIN."""
        renamed, any_topic = dict(about), "|".join(map(re.escape, self._longest_first))
        if "balance" in about:
            pattern = rf"(?<![\w.:-])({any_topic})(?![\w-])"
            renamed["balance"] = re.sub(pattern, rf"{self.prefix}\1", about["balance"])
        if "sql" in about:
            bare = re.sub(rf"\b(FROM|JOIN)\s+({any_topic})(?![\w.-])", r"\1 `\2`", about["sql"])
            renamed["sql"] = re.sub(rf"`({any_topic})`", rf"`{self.prefix}\1`", bare)
        return renamed

    @property
    def _longest_first(self) -> list[str]:
        return sorted(self.example.topics, key=len, reverse=True)

    def of_governance(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """What is declared to be compared with the cluster."""
        lists = {key: list(map(self.of, about[key])) for key in _DECLARED_TOPICS if key in about}
        return {**about, **lists}
