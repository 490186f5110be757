"""Restore drills."""

from kstreams_assets.errors.base import KStreamsAssetsError


class DrillError(KStreamsAssetsError):
    """A restore drill could not begin."""


class DrillNotDeclaredError(DrillError):
    """The YAML does not say how the application is started."""

    def __init__(self, *, application_id: str) -> None:
        super().__init__(
            f"Nothing says how {application_id} is started in a drill.",
            remedy="Give drill.command in the YAML: program and arguments, with"
            " {client_properties} and {state_dir} where they belong.",
        )
        self.application_id = application_id


class DrillCommandNotFoundError(DrillError):
    """The program of the drill's command, or its working directory, is not there."""

    def __init__(self, *, program: str, problem: str) -> None:
        super().__init__(
            f"The drill cannot start {program!r}: {problem}.",
            remedy="Correct drill.command (or drill.working_directory) in the YAML; nothing was"
            " restored.",
        )
        self.program = program
        self.problem = problem
