"""Completeness rules that are not known, or cannot be evaluated."""

from collections.abc import Iterable

from kstreams_assets.errors.base import KStreamsAssetsError


class CompletenessError(KStreamsAssetsError):
    """Completeness rules cannot be evaluated as asked."""


class UnknownRuleError(CompletenessError):
    """The application has no completeness rule of this name."""

    def __init__(self, *, application_id: str, rule: str, known: Iterable[str]) -> None:
        self.application_id = application_id
        self.rule = rule
        self.known = tuple(known)
        super().__init__(
            f"{application_id} has no completeness rule {rule!r}.",
            remedy=f"Its rules are: {', '.join(self.known) or 'none'}.",
        )
