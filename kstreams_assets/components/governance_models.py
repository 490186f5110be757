"""The block `governance` of the YAML."""

import dagster as dg
from pydantic import Field

from kstreams_assets.governance.declaration import Governance


class GovernanceModel(dg.Resolvable, dg.Model):
    """What is declared of the application, to be compared with its cluster."""

    internal_topics: list[str] | None = Field(
        default=None, description="Every internal topic that there may be."
    )

    def settings(self) -> Governance:
        """The declaration; raises ConfigurationError."""
        return Governance(
            internal_topics=None
            if self.internal_topics is None
            else frozenset(self.internal_topics),
            declared=True,
        )
