"""Reads the YAML of an application for the command line."""

import re
from pathlib import Path
from typing import Any

import yaml
from dagster.components.resolved.errors import ResolutionException
from pydantic import ValidationError

from kstreams_assets.components import KafkaStreamsAppComponent
from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError
from kstreams_assets.settings import ApplicationSettings

_PLACE = re.compile(r"<string>:\d+ - ")
_TYPE_ENDING = KafkaStreamsAppComponent.__name__


class AppFileError(ConfigurationError):
    """The YAML of an application is missing, not YAML, or says something unknown."""

    def __init__(self, *, path: Path, problem: str) -> None:
        super().__init__(
            f"{path}: {' '.join(problem.split())}",
            remedy="Correct the file; `dg check yaml` shows the same with the place in it, the"
            " settings are listed in docs/reference/yaml.md.",
        )
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
    return component.settings(path.parent, file=path.name)


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
    if bootstrap_servers is not None:
        connection = dict(attributes.get("connection") or {})
        attributes["connection"] = {**connection, "bootstrap_servers": bootstrap_servers}
    if warehouse is not None:
        attributes["warehouse"] = warehouse
    try:
        return KafkaStreamsAppComponent.resolve_from_dict(attributes)
    except ValidationError as error:
        raise AppFileError(path=path, problem=_problems(error)) from None
    except ResolutionException as error:
        raise AppFileError(path=path, problem=_resolution_problem(error)) from None


def read_attributes(path: Path, *, application_id: str | None = None) -> dict[str, Any]:
    """The attributes of the component as they are written, templates and all.

    Raises:
        AppFileError: There is no such file or no such component in it.
    """
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise AppFileError(path=path, problem=f"{error.strerror}.") from None
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


def _resolution_problem(error: ResolutionException) -> str:
    """What a template or a resolver said: Dagster's own text of the latter is a stack trace."""
    cause = error.__context__
    if isinstance(cause, ValidationError):
        return f"connection: {_problems(cause)}"
    if isinstance(cause, KStreamsAssetsError):
        return f"connection: {cause}"
    return f"{_PLACE.sub('', str(error)).strip().rstrip('.')}."


def _problems(error: ValidationError) -> str:
    """Where and what, without the values: they may be secrets."""
    problems = [
        f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}"
        for item in error.errors(include_input=False, include_url=False, include_context=False)
    ]
    return "; ".join(problems) + "."
