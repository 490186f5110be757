"""Reads the YAML of an application for the command line."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from dagster.components.resolved.errors import ResolutionException
from pydantic import ValidationError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from kstreams_assets.cli.yaml_problems import leading_place, place, place_of_text, problems_in
from kstreams_assets.completeness.yaml_lines import attributes_node
from kstreams_assets.components import KafkaStreamsAppComponent
from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError, RuleSqlError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.layout import Warehouse

_PLACE = re.compile(r"<string>:\d+ - (?P<block>\S+)")
_TYPE_ENDING = KafkaStreamsAppComponent.__name__


class AppFileError(ConfigurationError):
    """The YAML of an application is missing, not YAML, or says something unknown."""

    def __init__(self, *, path: Path, problem: str, remedy: str = "Correct the file.") -> None:
        super().__init__(f"{path}: {' '.join(problem.split())}", remedy=remedy)
        self.path = path


def load_settings(
    path: Path,
    *,
    application_id: str | None = None,
    bootstrap_servers: str | None = None,
    warehouse: str | None = None,
) -> ApplicationSettings:
    """The settings of the application in a component's YAML.

    Args as for `load_component`.

    Raises:
        ConfigurationError: The file does not say what it should.
    """
    component = load_component(
        path,
        application_id=application_id,
        bootstrap_servers=bootstrap_servers,
        warehouse=warehouse,
    )
    try:
        return component.settings(path.parent, file=path.name)
    except RuleSqlError:
        raise  # it names its place
    except ConfigurationError as error:
        root = attributes_node(path, component.application_id)
        where = leading_place(root, error.problem) or next(
            (
                place
                for name in ("pattern", "name")
                if (place := place_of_text(root, getattr(error, name, "")))
            ),
            "",
        )
        raise AppFileError(
            path=path, problem=_at(where, error.problem), remedy=error.remedy
        ) from error


def load_component(
    path: Path,
    *,
    application_id: str | None = None,
    bootstrap_servers: str | None = None,
    warehouse: str | None = None,
) -> KafkaStreamsAppComponent:
    """The component in a YAML file.

    Args:
        path: The `defs.yaml`.
        application_id: Which one, when the file has several documents.
        bootstrap_servers: Replaces the file's.
        warehouse: Replaces the file's.

    Raises:
        ConfigurationError: The file does not say what it should.
    """
    attributes = read_attributes(path, application_id=application_id)
    _check_options(bootstrap_servers, warehouse)
    root = attributes_node(path, application_id)
    if bootstrap_servers is not None:
        attributes["connection"] = {
            "bootstrap_servers": bootstrap_servers,
            **(attributes.get("connection") or {}),
        }
    if warehouse is not None:
        attributes["warehouse"] = warehouse
    try:
        component = KafkaStreamsAppComponent.resolve_from_dict(attributes)
    except ValidationError as error:
        raise AppFileError(path=path, problem=problems_in(root, error)) from None
    except ResolutionException as error:
        raise AppFileError(path=path, problem=_resolution_problem(root, error)) from None
    if bootstrap_servers is None:
        return component
    return component.model_copy(update={"connection": component.connection.at(bootstrap_servers)})


def _check_options(bootstrap_servers: str | None, warehouse: str | None) -> None:
    """What stands on the command line is not to be blamed on the file."""
    if bootstrap_servers is not None:
        KafkaConnection(bootstrap_servers=bootstrap_servers)
    if warehouse is not None:
        Warehouse.at(warehouse)


def read_attributes(path: Path, *, application_id: str | None = None) -> dict[str, Any]:
    """The attributes of the component as they are written, templates and all.

    Raises:
        AppFileError: There is no such file or no such component in it.
    """
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise AppFileError(path=path, problem=f"{error.strerror}.") from None
    except yaml.MarkedYAMLError as error:
        raise AppFileError(path=path, problem=_not_yaml(error)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise AppFileError(path=path, problem=f"not YAML: {error}.") from None
    found = [
        document["attributes"]
        for document in documents
        if isinstance(document, dict)
        and str(document.get("type", "")).endswith(_TYPE_ENDING)
        and isinstance(document.get("attributes"), dict)
    ]
    if application_id is not None:
        found = [a for a in found if a.get("application_id") == application_id]
    if len(found) != 1:
        ids = ", ".join(str(a.get("application_id")) for a in found)
        problem = f"{len(found)} applications ({ids})" if found else "no application"
        raise AppFileError(
            path=path,
            problem=f"{problem} of type {_TYPE_ENDING}; one is needed (--application-id chooses).",
        )
    return dict(found[0])


def _not_yaml(error: yaml.MarkedYAMLError) -> str:
    """The place of the problem alone: the text around it may be a secret."""
    mark = error.problem_mark
    where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
    return f"{where}not YAML: {error.problem or error.context}."


def _resolution_problem(root: Node | None, error: ResolutionException) -> str:
    """What a template or a resolver said: Dagster's own text of the latter is a stack trace."""
    cause = error.__context__
    told = _PLACE.match(str(error).strip())
    block = "" if told is None else told["block"]
    if isinstance(cause, ValidationError):
        return problems_in(root, cause, block=block)
    if isinstance(cause, KStreamsAssetsError):
        setting = cause.problem.partition(":")[0]
        return _at(place(root, f"{block}.{setting}"), str(cause))
    text = str(error).strip()
    where = place(root, block)
    if told is not None:
        text = text[told.end() :].strip()
    else:
        where = next((place_of_text(root, value) for value in _templates(root, text)), "")
    return _at(where, f"{text.rstrip('.')}.")


def _at(where: str, problem: str) -> str:
    """The problem with its place; a key at the problem's own beginning is not repeated."""
    line, _, keys = where.partition(", ")
    if keys and re.match(rf"{re.escape(keys)}\b", problem):
        return f"{line}: {problem}"
    *_, last = keys.split(".")
    if last:
        problem = problem.removeprefix(f"{last}: ")
    return f"{where}: {problem}" if where else problem


def _templates(root: Node | None, text: str) -> Iterator[str]:
    """Values of the YAML with a template that names an environment variable of the text."""
    names = re.findall(r"[A-Z][A-Z0-9_]{2,}", text)
    if isinstance(root, ScalarNode) and "{{" in root.value:
        yield from (root.value for name in names if name in root.value)
    elif isinstance(root, MappingNode):
        for _, value in root.value:
            yield from _templates(value, text)
    elif isinstance(root, SequenceNode):
        for value in root.value:
            yield from _templates(value, text)
