import pytest

from kstreams_assets.app.declarations import Declarations, StoreDeclaration, require_known
from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.errors import ConfigurationError


def test_a_store_declaration_says_exactly_one_thing() -> None:
    with pytest.raises(ConfigurationError, match="has 0 of"):
        StoreDeclaration()
    with pytest.raises(ConfigurationError, match="has 2 of"):
        StoreDeclaration(changelog="a", logging_disabled=True)


def test_contradictions_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="not_mine: a"):
        Declarations(inputs=frozenset({"a"}), not_mine=frozenset({"a"}))
    with pytest.raises(ConfigurationError, match="not_mine: c"):
        Declarations(stores={"s": StoreDeclaration(changelog="c")}, not_mine=frozenset({"c"}))
    with pytest.raises(ConfigurationError, match="'a' is declared without any role"):
        Declarations(topic_roles={"a": TopicRoles()})


def test_a_declared_role_denies_the_others() -> None:
    declared = Declarations(
        topic_roles={"a": TopicRoles({TopicRole.OUTPUT})}, not_mine=frozenset({"b"})
    )
    assert declared.denies("a", TopicRole.CHANGELOG)
    assert not declared.denies("a", TopicRole.OUTPUT)
    assert declared.denies("b", TopicRole.OUTPUT)
    assert not declared.denies("c", TopicRole.OUTPUT)


def test_unknown_name_error_tells_near_names() -> None:
    with pytest.raises(ConfigurationError, match=r"topic 'ordes' .* \(near: orders\)"):
        require_known("topic", ["orders", "ordes"], ["orders", "payments"], "the text", keys=[])
