"""The block `drill` of the YAML."""

import dagster as dg
from pydantic import Field

from kstreams_assets.drill.settings import DrillSettings


class DrillModel(dg.Resolvable, dg.Model):
    """How restore drills of the application go."""

    command: list[str] = Field(default=[], description="Program and arguments that start it.")

    def settings(self) -> DrillSettings:
        """The settings of a drill; raises ConfigurationError."""
        return DrillSettings(command=tuple(self.command))
