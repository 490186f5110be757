"""Keys of assets as the default translator gives them, by the application's id."""

from typing import Protocol

import dagster as dg

from kstreams_assets.orchestration.translator import (
    AssetKind,
    KafkaStreamsAsset,
    KafkaStreamsTranslator,
)


class _Key(Protocol):
    def __call__(self, application_id: str, name: str = "", /) -> dg.AssetKey: ...


def _of(kind: AssetKind) -> _Key:
    def key(application_id: str, name: str = "", /) -> dg.AssetKey:
        return KafkaStreamsTranslator().get_asset_key(KafkaStreamsAsset(kind, application_id, name))

    return key


backup_key = _of(AssetKind.BACKUP)
completeness_key = _of(AssetKind.COMPLETENESS)
drill_key = _of(AssetKind.DRILL)
expire_key = _of(AssetKind.EXPIRE)
governance_key = _of(AssetKind.GOVERNANCE)
group_offsets_key = _of(AssetKind.GROUP_OFFSETS)
ktable_key = _of(AssetKind.KTABLE)
recovery_points_key = _of(AssetKind.RECOVERY_POINTS)
restorable_key = _of(AssetKind.RESTORABLE)
restore_completeness_key = _of(AssetKind.RESTORED_COMPLETENESS)
restore_key = _of(AssetKind.RESTORE)
verification_key = _of(AssetKind.VERIFICATION)
