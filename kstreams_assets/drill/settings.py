"""How restore drills of an application go, and what one is asked. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DrillSettings:
    """How the application is started on the drill's cluster, and what is expected of it.

    `command` are program and arguments; `{client_properties}`, `{application_id}`, `{state_dir}`
    are filled in, and each topic's name is as it was. The cluster listens with a password, which
    the file `{client_properties}` holds, unless `open_cluster` is set. The application's
    environment is `environment`, the variables named in `pass_on` as the drill has them, and a few
    that hold no secret (PATH, HOME, JAVA_HOME, ...). `running_line` is a regular expression of the
    line by which it says that it is RUNNING. `objective_s` is the declared recovery time
    objective: from the begin of the restore to the application having caught up. Times in seconds.
    """

    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    pass_on: tuple[str, ...] = ()
    working_directory: str | None = None
    open_cluster: bool = False
    running_line: str = r"State transition from REBALANCING to RUNNING"
    start_timeout_s: float = 300.0
    catch_up_timeout_s: float = 900.0
    objective_s: float | None = None
    every: str | None = None
    """Cron schedule of the drill; None for drills by hand only."""


@dataclass(frozen=True, slots=True)
class DrillRequest:
    """Which recovery point is restored, and whether everything stays there afterwards.

    The newest exact point unless `point_id`, or `as_of_ms` (epoch milliseconds; the newest point
    that was complete then) says otherwise. With `keep` the local cluster, the state directory and
    the application's log stay.
    """

    point_id: str | None = None
    as_of_ms: int | None = None
    keep: bool = False
