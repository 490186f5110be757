"""Read the YAML of an application, for the command line and for Dagster."""

import os
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError
from yaml.nodes import Node

from kstreams_assets.app_file.foreign import described, described_text
from kstreams_assets.app_file.model import ApplicationModel
from kstreams_assets.app_file.problems import (
    CORRECT,
    at_place,
    leading_place,
    place,
    place_below,
    problems_in,
)
from kstreams_assets.app_file.yaml_lines import attributes_node
from kstreams_assets.errors import ConfigurationError, RuleSqlError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.settings import ApplicationSettings

FILE: Final = "defs.yaml"
_TYPE_ENDING: Final = "KafkaStreamsAppComponent"
_MAKE: Final = (
    "Use the defs.yaml that `kstreams-assets discover --application-id ID --bootstrap HOST:PORT"
    " --output defs.yaml` writes."
)


def load_settings(
    path: Path,
    *,
    application_id: str | None = None,
    bootstrap_servers: str | None = None,
    warehouse: str | None = None,
    state_in: str | None = None,
) -> ApplicationSettings:
    """The settings of the application in a component's YAML.

    Arguments are those of `load_model`.

    Raises:
        ConfigurationError: The file is invalid.
    """
    model = load_model(
        path,
        application_id=application_id,
        bootstrap_servers=bootstrap_servers,
        warehouse=warehouse,
        state_in=state_in,
    )
    try:
        return model.settings(path.parent, file=path.name)
    except RuleSqlError:
        raise  # the error names its place
    except ConfigurationError as error:
        root = attributes_node(path, model.application_id)
        where = leading_place(root, error.problem) or place_below(root, error.keys, error.value)
        raise _wrong(path, at_place(where, error.problem), remedy=error.remedy) from error


def load_model(
    path: Path,
    *,
    application_id: str | None = None,
    bootstrap_servers: str | None = None,
    warehouse: str | None = None,
    state_in: str | None = None,
) -> ApplicationModel:
    """The model of an application in a YAML file.

    Args:
        path: The `defs.yaml`.
        application_id: Selects the application if the file has several documents.
        bootstrap_servers: Replaces the file's.
        warehouse: Replaces the file's.
        state_in: Replaces the file's.

    Raises:
        ConfigurationError: The file is invalid.
    """
    attributes = read_attributes(path, application_id=application_id)
    _check_options(bootstrap_servers, warehouse)
    if bootstrap_servers is not None:
        attributes["connection"] = {
            "bootstrap_servers": bootstrap_servers,
            **(attributes.get("connection") or {}),
        }
    if warehouse is not None:
        attributes["warehouse"] = warehouse
    if state_in is not None:
        attributes.pop("notes_in", None)  # its former name
        attributes["state_in"] = state_in
    model = application_model(attributes, path, application_id=application_id)
    if bootstrap_servers is None:
        return model
    return model.model_copy(update={"connection": model.connection.at(bootstrap_servers)})


def application_model(
    attributes: dict[str, Any], path: Path = Path(FILE), *, application_id: str | None = None
) -> ApplicationModel:
    """The model of the attributes of a file, with templates filled in.

    Args:
        attributes: The attributes as written.
        path: The file, to name the lines of problems.
        application_id: Selects the application if the file has several documents.

    Raises:
        ConfigurationError: The attributes are invalid.
    """
    said_id = attributes.get("application_id") if application_id is None else application_id
    root = attributes_node(path, said_id if isinstance(said_id, str) else None)
    try:
        return ApplicationModel.model_validate(_filled_in(attributes, root, path, ()))
    except ValidationError as error:
        problem, remedy = problems_in(root, error)
        raise _wrong(path, problem, remedy=remedy) from None


def _filled_in(said: object, root: Node | None, path: Path, keys: tuple[str, ...]) -> Any:  # noqa: ANN401 - YAML
    """The value with its templates filled in; they can use only `env`."""
    if isinstance(said, dict):
        return {k: _filled_in(v, root, path, (*keys, str(k))) for k, v in said.items()}
    if isinstance(said, list):
        return [_filled_in(v, root, path, (*keys, str(i))) for i, v in enumerate(said)]
    if isinstance(said, datetime):
        return said.strftime("%Y-%m-%dT%H:%M")
    if isinstance(said, date):
        return said.isoformat()  # which YAML makes of a start without quotes
    if not isinstance(said, str) or not ("{{" in said or "{%" in said):
        return said
    from jinja2 import StrictUndefined, TemplateError
    from jinja2.nativetypes import NativeEnvironment

    try:
        filled = NativeEnvironment(undefined=StrictUndefined).from_string(said).render(env=_env)
        if isinstance(filled, StrictUndefined):
            str(filled)  # which raises
        return filled
    except TemplateError as error:
        text = f"the template is invalid: {str(error).rstrip('.')}. Templates can use only env."
    except _NotSetError as error:
        text = str(error)
    raise _wrong(path, at_place(place(root, ".".join(keys)), text))


class _NotSetError(Exception):
    """An environment variable that a template names."""


def _env(name: str, default: str | None = None) -> str:
    value = os.environ.get(name, default)
    if value is None:
        message = (
            f"Environment variable {name} is not set and no default value was provided. To provide"
            f" a default value, use e.g. `env({name!r}, 'default_value')`."
        )
        raise _NotSetError(message)
    return value


def _check_options(bootstrap_servers: str | None, warehouse: str | None) -> None:
    """Errors of options must not blame the file."""
    if bootstrap_servers is not None:
        KafkaConnection(bootstrap_servers=bootstrap_servers)
    if warehouse is not None:
        Warehouse.at(warehouse)


def read_attributes(path: Path, *, application_id: str | None = None) -> dict[str, Any]:
    """The attributes of the component as written, including templates.

    Raises:
        ConfigurationError: The file does not exist or does not contain such a component.
    """
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        documents = list(yaml.safe_load_all(text))
    except OSError as error:
        raise _wrong(path, f"{error.strerror}.") from None
    except yaml.MarkedYAMLError as error:
        if (what := described_text(text)) is not None:
            raise _wrong(path, _no_application(what), remedy=_MAKE) from None
        raise _wrong(path, _not_yaml(error)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _wrong(path, f"not YAML: {error}.") from None
    found = [
        document["attributes"]
        for document in documents
        if isinstance(document, dict)
        and str(document.get("type", "")).endswith(_TYPE_ENDING)
        and isinstance(document.get("attributes"), dict)
    ]
    if not found:
        what = described(documents, text)
        raise _wrong(path, _no_application(what), remedy=_MAKE)
    ids_there = ", ".join(str(a.get("application_id")) for a in found)
    if application_id is not None:
        found = [a for a in found if a.get("application_id") == application_id]
    if len(found) > 1:
        raise _wrong(
            path,
            f"contains {len(found)} applications ({ids_there}).",
            remedy="Choose it with --application-id.",
        )
    if not found:
        raise _wrong(
            path,
            f"no application of type {_TYPE_ENDING} has the id {application_id!r}; the file"
            f" contains: {ids_there}.",
            remedy="Choose one of them with --application-id.",
        )
    return dict(found[0])


def _wrong(path: Path, problem: str, *, remedy: str = CORRECT) -> ConfigurationError:
    """The error for a YAML that is missing, is not YAML, or has unknown content."""
    return ConfigurationError(f"{path}: {' '.join(problem.split())}", remedy=remedy)


def _no_application(what: str) -> str:
    return (
        f"it contains no application of type {_TYPE_ENDING}: the file is {what}. The YAML of an"
        f" application has `type: kstreams_assets.components.{_TYPE_ENDING}` and `attributes`."
    )


def _not_yaml(error: yaml.MarkedYAMLError) -> str:
    """Only the place of the problem: the text around it may be a secret."""
    mark = error.problem_mark
    where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
    return f"{where}not YAML: {error.problem or error.context}."
