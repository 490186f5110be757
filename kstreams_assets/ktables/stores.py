"""The stores of an application of which there can be tables."""

import difflib
from collections.abc import Sequence

from kstreams_assets.app.model import TopicRole
from kstreams_assets.app.store_format import format_of
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.model.snapshot import TableStore
from kstreams_assets.settings import ApplicationSettings


def table_stores(settings: ApplicationSettings) -> tuple[TableStore, ...]:
    """The stores of which tables are made, by name: those with a log that is backed up.

    A store that depends on an unconfirmed guess is not among them. A store of which nothing is
    declared is read as bytes; where the DSL made its name up, that name tells its kind.
    """
    backed_up = {topic.name for topic in settings.topics}
    return tuple(
        TableStore(
            store=store.name,
            topic=store.changelog,
            format=format_of(store.name, settings.store_formats),
            is_global=store.is_global,
            is_changelog_only=settings.application.topic(store.changelog).roles
            == {TopicRole.CHANGELOG},
        )
        for store in sorted(settings.application.stores, key=lambda store: store.name)
        if store.changelog is not None
        and store.changelog in backed_up
        and store.name not in settings.without_ktable
        and not settings.application.guesses_about(stores=[store.name])
    )


def why_unconfirmed(settings: ApplicationSettings, store: str) -> str:
    """Why a store is not read: it depends on a guess that nobody has confirmed; empty if not."""
    guesses = settings.application.guesses_about(stores=[store])
    return " ".join(f"{str(guess).rstrip('.')}. {guess.remedy}" for guess in guesses).rstrip(".")


def require_store(settings: ApplicationSettings, store: str) -> None:
    """Refuse a store that the application does not have, or that can have no table.

    Raises:
        KStreamsAssetsError: It says which there are, and which name is near.
    """
    known = {s.name: s for s in settings.application.stores}
    if store in known:
        why = ""
        if store in settings.without_ktable:
            why = "it is declared with ktable: false"
        elif unconfirmed := why_unconfirmed(settings, store):
            why = unconfirmed
        elif known[store].changelog is None:
            why = "it has no changelog (logging disabled)"
        if not why:
            return
        raise no_table(settings, store, sorted(known), why=why)
    raise no_table(settings, store, sorted(known))


def no_table(
    settings: ApplicationSettings, store: str, known: Sequence[str], *, why: str = ""
) -> KStreamsAssetsError:
    """The error for a store of which there is no table, or that the application does not have."""
    near = ", ".join(difflib.get_close_matches(store, known, n=3, cutoff=0.5))
    return KStreamsAssetsError(
        f"Store {store!r} of {settings.application_id} has no table: {why}."
        if why
        else f"{settings.application_id} has no store {store!r}"
        f"{f' (near: {near})' if near else ''}.",
        remedy=f"Its stores are: {', '.join(known) or 'none'}.",
    )
