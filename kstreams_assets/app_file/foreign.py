"""Recognise files of other tools that were given instead of the YAML of an application."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_PROPERTY: Final = re.compile(r"^\s*[a-z][\w-]*(?:\.[\w-]+)+\s*[=:]", re.MULTILINE)
_TOPOLOGY: Final = re.compile(r"^\s*(?:Topologies:|Sub-topology: \d)", re.MULTILINE)
_OPERATORS: Final = {
    "kafka.strimzi.io": "Strimzi",
    "core.strimzi.io": "Strimzi",
    "platform.confluent.io": "Confluent for Kubernetes",
    "kafka.banzaicloud.io": "Koperator",
    "velero.io": "Velero",
    "k8up.io": "K8up",
    "helm.toolkit.fluxcd.io": "Flux",
    "argoproj.io": "Argo CD",
}
_BY_KEYS: Final[Sequence[tuple[frozenset[str], str]]] = (
    (frozenset({"backup_id", "mode"}), "a configuration of kafka-backup (osodevops)"),
    (frozenset({"backup_id", "storage"}), "a configuration of kafka-backup (osodevops)"),
    (frozenset({"load_from"}), "a workspace file of Dagster (workspace.yaml)"),
    (frozenset({"run_launcher"}), "the settings of a Dagster instance (dagster.yaml)"),
    (frozenset({"run_monitoring"}), "the settings of a Dagster instance (dagster.yaml)"),
    (frozenset({"services"}), "a file of Docker Compose"),
    (frozenset({"spring"}), "a configuration of Spring (application.yml)"),
    (frozenset({"quarkus"}), "a configuration of Quarkus (application.yaml)"),
    (frozenset({"micronaut"}), "a configuration of Micronaut (application.yml)"),
    (frozenset({"scrape_configs"}), "a configuration of Prometheus"),
    (frozenset({"connector.class"}), "the configuration of a connector of Kafka Connect"),
    (frozenset({"streams", "pipelines"}), "a definition of KSML"),
    (frozenset({"apiVersion", "dependencies"}), "a chart of Helm"),
)


def described(documents: Sequence[object], text: str) -> str:
    """Describe a file without an application in words, as far as possible."""
    found = [one for one in documents if one is not None]
    if not found:
        return "an empty file"
    for document in found:
        if isinstance(document, Mapping) and (what := _of_mapping(document)):
            return what
    if (what := described_text(text)) is not None:
        return what
    if isinstance(found[0], Mapping):
        keys = ", ".join(str(key) for key in list(found[0])[:4])
        more = " ..." if len(found[0]) > 4 else ""
        return f"a YAML of another kind (its keys: {keys}{more})"
    return f"a {'list' if isinstance(found[0], list) else 'text'}, not a YAML of keys"


def described_text(text: str) -> str | None:
    """Describe a text that may not be YAML; None if it is not recognised."""
    if _TOPOLOGY.search(text):
        return "the text of a topology, which `topology` of the YAML names"
    if re.search(r"^\s*application\.id\s*[=:]", text, re.MULTILINE):
        return "a file of Java properties of Kafka Streams"
    return "a file of Java properties" if len(_PROPERTY.findall(text)) > 1 else None


def _of_mapping(document: Mapping[Any, Any]) -> str | None:
    kind, version = document.get("kind"), document.get("apiVersion")
    if isinstance(kind, str) and isinstance(version, str):
        group = version.partition("/")[0]
        of = f" of {_OPERATORS[group]}" if group in _OPERATORS else ""
        return f"a Kubernetes manifest{of} ({kind}, {version})"
    component = document.get("type")
    if isinstance(component, str) and ("attributes" in document or "." in component):
        if component.endswith("KafkaStreamsAppComponent"):
            return "a component without `attributes`"
        return f"another component of Dagster ({component})"
    config = document.get("config")
    if isinstance(config, Mapping) and "connector.class" in config:
        return "the configuration of a connector of Kafka Connect"
    keys = {str(key) for key in document}
    return next((what for of_it, what in _BY_KEYS if of_it <= keys), _attributes_alone(keys))


def _attributes_alone(keys: set[str]) -> str | None:
    if {"application_id", "connection"} <= keys:
        return "the attributes of an application without `type` and `attributes` around them"
    return None
