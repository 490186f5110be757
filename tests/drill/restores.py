"""A stored restore, made up."""

from kstreams_assets.app.model import TopicRole
from kstreams_assets.model.restores import RestoreMode, RestoreState, StoredRestore, StoredTopic


def stored_restore(changelog: str, *, records: int) -> StoredRestore:
    """A committed restore of an input, of a source topic that serves as changelog, of a changelog.

    Only the last one has `records`.
    """
    changelog_role, input_role = TopicRole.CHANGELOG.value, TopicRole.INPUT.value
    topics = (
        ("input", (input_role,), 7),
        ("table", (input_role, changelog_role), 7),
        (changelog, (changelog_role,), records),
    )
    return StoredRestore(
        application_id="shop",
        restore_id="r",
        state=RestoreState.COMMITTED,
        changed_at_ms=0,
        created_at_ms=0,
        run_id="run",
        point_id="p",
        group="shop",
        target_cluster_id="c",
        target_bootstrap_servers="h:1",
        mode=RestoreMode.STATE,
        request="{}",
        topics=tuple(
            StoredTopic(
                source=name,
                target=name,
                target_topic_id="i",
                base_offsets=(0,),
                records=count,
                roles=roles,
            )
            for name, roles, count in topics
        ),
    )
