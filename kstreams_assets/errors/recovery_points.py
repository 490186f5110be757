"""Recovery points that are not there."""

from kstreams_assets.errors.base import KStreamsAssetsError


class RecoveryPointNotFoundError(KStreamsAssetsError):
    """There is no recovery point of this id."""

    def __init__(self, *, point_id: str, application_id: str) -> None:
        self.point_id = point_id
        self.application_id = application_id
        super().__init__(
            f"{application_id} has no recovery point {point_id!r}.",
            remedy="Look ids up: kstreams-assets recovery-points list.",
        )
