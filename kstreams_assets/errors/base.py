"""What all errors have in common."""


class KStreamsAssetsError(Exception):
    """Something this project refuses or could not do; the message ends with the remedy."""

    def __init__(self, problem: str, *, remedy: str) -> None:
        super().__init__(f"{problem} {remedy}")
        self.problem = problem
        self.remedy = remedy
