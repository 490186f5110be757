"""Where a restored example differs from its uninterrupted run, in words."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from kstreams_assets.app.model import AppTopic, TopicRole
from kstreams_assets.app.store_format import StoreKind
from kstreams_assets.settings import ApplicationSettings
from tests.restore.control import by_key, differences, newest
from tests.restore.trial import Restored
from tests.streams.feed import Record

_TIMESTAMP: Final = 8
_FEW: Final = 3


def differences_from_control(
    restored: Restored, *, not_compared: frozenset[str], by_last: bool
) -> list[str]:
    """What differs in outputs (every record of every key, or the last) and in changelogs.

    Changelogs are compared by what their stores hold. Stores and outputs that are `not_compared`
    are left out.
    """
    settings, control = restored.run.settings, restored.run.written
    outputs = [
        topic.name
        for topic in settings.application.with_role(TopicRole.OUTPUT)
        if topic.name not in not_compared
    ]
    changelogs = [
        topic
        for topic in settings.application.with_role(TopicRole.CHANGELOG)
        if not not_compared & {*topic.stores}
    ]
    found = restored.written(*outputs, *(topic.name for topic in changelogs))
    wrong: list[str] = []
    for topic in outputs:
        if by_last:
            wrong += _by_last(topic, newest(control[topic]), newest(found[topic]))
        else:
            texts = differences(by_key(control[topic]), by_key(found[topic]))
            wrong += [f"{topic}: {text}" for text in texts]
    for topic in changelogs:
        comparable = _comparable(settings, topic)
        pair = (newest(map(comparable, logs[topic.name])) for logs in (control, found))
        wrong += _by_last(topic.name, *pair)
    return wrong


def _by_last(
    topic: str, control: Mapping[bytes | None, Any], found: Mapping[bytes | None, Any]
) -> list[str]:
    keys = sorted({*control, *found}, key=lambda key: key or b"")
    other = [key for key in keys if control.get(key) != found.get(key)]
    texts = [f"{topic}: {k!r}: {found.get(k)} for {control.get(k)}" for k in other[:_FEW]]
    return texts + ([f"{topic}: {len(other)} keys in all"] if len(other) > _FEW else [])


def _comparable(settings: ApplicationSettings, topic: AppTopic) -> Callable[[Record], Record]:
    """A changelog record without what depends on the cluster.

    In a suppress buffer 8 bytes behind the timestamp are the offset of the record that waits.
    """
    kinds = {settings.store_formats[s].kind for s in topic.stores if s in settings.store_formats}
    if StoreKind.SUPPRESS not in kinds:
        return lambda record: record

    def without_offset(record: Record) -> Record:
        if record.value is None:
            return record
        value = record.value[:_TIMESTAMP] + record.value[2 * _TIMESTAMP :]
        return record._replace(value=value)

    return without_offset
