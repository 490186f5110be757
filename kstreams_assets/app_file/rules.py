"""Check the rules and recomputed stores of the YAML, and add their SQL to the settings."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kstreams_assets.app.declarations import require_known
from kstreams_assets.app.model import StreamsApplication, TopicRole
from kstreams_assets.app.rules import CompletenessRule, DeclaredRule, Recomputation, TopicFormat
from kstreams_assets.app.store_format import BYTES
from kstreams_assets.app_file.blocks import StoreBlock, TopicBlock
from kstreams_assets.app_file.yaml_lines import RuleLines, YamlLines
from kstreams_assets.errors import ConfigurationError, RuleSqlError
from kstreams_assets.rules.balance import balance_sql
from kstreams_assets.rules.recompute import RULE_PREFIX
from kstreams_assets.rules.view import KnownViews, RuleTextError
from kstreams_assets.settings import ApplicationSettings

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def topic_formats(
    topics: Mapping[str, TopicBlock], application: StreamsApplication
) -> dict[str, TopicFormat]:
    """The declared formats of topics, by full name.

    Internal topics may be named without the application id.

    Raises:
        ConfigurationError: The application does not have the topic, the topic is read as a store,
            or a format is invalid.
    """
    said = {name: model for name, model in topics.items() if model.says_how_to_read}
    names = {topic.name: topic.name for topic in application.topics}
    prefix = f"{application.application_id}-"
    for topic in application.topics:
        if topic.is_internal:
            names.setdefault(topic.name.removeprefix(prefix), topic.name)
    where = f"application {application.application_id}"
    require_known("topic", said.keys(), names, where, keys=["topics"])
    found: dict[str, TopicFormat] = {}
    for name, model in said.items():
        topic = application.topic(names[name])
        if topic.roles == {TopicRole.CHANGELOG}:
            raise ConfigurationError(
                f"Topic {name!r} has a format, but is a changelog.",
                remedy="Set key and value of its store instead (stores): changelogs are read as"
                " stores.",
            )
        if topic.name in found:
            raise ConfigurationError(
                f"Topic {topic.name!r} has two blocks in topics, with and without the application"
                " id.",
                remedy="Remove one of them.",
            )
        found[topic.name] = TopicFormat(key=model.key or BYTES, value=model.value or BYTES)
    return found


def with_rules(
    settings: ApplicationSettings,
    *,
    rules: Sequence[DeclaredRule],
    stores: Mapping[str, StoreBlock],
    lines: YamlLines,
) -> ApplicationSettings:
    """The settings with the completeness rules and recomputed stores of the YAML.

    Raises:
        RuleSqlError: A rule is invalid; names the rule, its line, the line with the problem.
    """
    known = KnownViews.of(settings)
    return replace(
        settings,
        completeness=tuple(_rules(rules, known, lines)),
        recomputed=tuple(_recomputed(stores, known, lines)),
    )


def _rules(
    models: Sequence[DeclaredRule], known: KnownViews, lines: YamlLines
) -> Iterator[CompletenessRule]:
    seen: dict[str, int] = {}
    for number, model in enumerate(models):
        where = lines.of_rule(number)
        try:
            _check_name(model.name, number, seen)
            yield _rule(model, known, None if where is None else where.rule)
        except RuleTextError as error:
            raise _named(model.name, error, lines, where) from None


def _check_name(name: str, number: int, seen: dict[str, int]) -> None:
    if not _NAME.fullmatch(name):
        raise RuleTextError(
            "its name is not an identifier", remedy="Use letters, digits and underscores."
        )
    if name.lower().startswith(RULE_PREFIX):
        raise RuleTextError(
            f"names that start with {RULE_PREFIX} are reserved for recomputed stores",
            remedy="Rename the rule.",
        )
    if name in seen:
        raise RuleTextError(
            f"rules {seen[name] + 1} and {number + 1} have the same name", remedy="Rename one."
        )
    seen[name] = number


def _rule(model: DeclaredRule, known: KnownViews, line: int | None) -> CompletenessRule:
    if (model.sql is None) == (model.balance is None):
        given = "neither sql nor" if model.sql is None else "both sql and"
        raise RuleTextError(f"it has {given} balance", remedy="Set exactly one of the two.")
    if not model.on:
        raise RuleTextError("its list of places (on) is empty", remedy="Add a place, or remove on.")
    if model.sql is not None:
        if model.per is not None:
            raise RuleTextError(
                "it has both sql and per", remedy="per belongs to a balance; use GROUP BY in SQL."
            )
        from kstreams_assets.rules.sql_check import check_rule_sql  # imports a parser of SQL

        query, views = model.sql, check_rule_sql(model.sql, known, model.scope)
        repeats = None
    else:
        made = balance_sql(model.balance or "", per=model.per, known=known, scope=model.scope)
        query, views, repeats = made.sql, made.views, made.repeats
    return CompletenessRule(**dict(model), query=query, views=views, line=line, repeats=repeats)


def _recomputed(
    stores: Mapping[str, StoreBlock], known: KnownViews, lines: YamlLines
) -> Iterator[Recomputation]:
    for store, model in stores.items():
        if model.recompute is None:
            continue
        from kstreams_assets.rules.sql_check import check_recomputation  # imports a parser of SQL

        where = lines.recomputed.get(store)
        try:
            line = None if where is None else where.rule
            declared = Recomputation(**dict(model.recompute), store=store, line=line)
            check_recomputation(declared, known)
        except RuleTextError as error:
            raise _named(f"{RULE_PREFIX}{store}", error, lines, where) from None
        yield declared


def _named(
    rule: str, error: RuleTextError, lines: YamlLines, where: RuleLines | None
) -> RuleSqlError:
    return RuleSqlError(
        rule=rule,
        problem=error.problem,
        remedy=error.remedy,
        file=lines.file,
        line=None if where is None else where.rule,
        problem_line=None if where is None or error.line is None else where.of_text(error.line),
    )
