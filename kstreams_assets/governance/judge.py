"""All checks of an application's governance. Pure."""

from collections.abc import Callable
from typing import Final

from kstreams_assets.checks import Severity
from kstreams_assets.governance import (
    judges_configs,
    judges_load,
    judges_partitions,
    judges_retention,
    judges_topology,
)
from kstreams_assets.governance.facts import Declared, GovernanceFacts
from kstreams_assets.governance.findings import GovernanceFinding, GovernanceVerdict, verdict


def owner_and_objective_declared(_facts: GovernanceFacts, declared: Declared) -> GovernanceVerdict:
    """Somebody owns the application, and says what a recovery must reach."""
    findings = []
    if not declared.owners:
        findings.append(
            GovernanceFinding(
                declared.application_id,
                "no owner",
                "somebody who answers for it",
                "Add owners to the YAML, for example owners: [team:orders].",
                Severity.WARN,
            )
        )
    said = {
        "recovery_points.objective_seconds": declared.objective_s,
        "drill.objective_seconds": declared.recovery_time_s,
    }
    absent = [name for name, value in said.items() if value is None]
    if len(absent) == len(said):
        findings.append(
            GovernanceFinding(
                declared.application_id,
                "no recovery objective",
                "how much may be lost, or how long a recovery may take",
                f"Add {' and '.join(said)} to the YAML.",
                Severity.WARN,
            )
        )
        absent = []
    told = [f"{name} {value:g}" for name, value in said.items() if value is not None]
    return verdict(
        "owner_and_objective_declared",
        f"Owners: {', '.join(declared.owners) or 'none'}; objectives: {', '.join(told) or 'none'}.",
        findings,
        [f"{name} is not declared." for name in absent],
    )


_JUDGES: Final[tuple[Callable[[GovernanceFacts, Declared], GovernanceVerdict], ...]] = (
    judges_topology.internal_topics_as_declared,
    judges_topology.stores_as_declared,
    judges_topology.topology_as_declared,
    judges_partitions.partitions_as_needed,
    judges_configs.changelogs_replicated,
    judges_configs.cleanup_policies_fit,
    judges_retention.retention_covers_windows,
    judges_retention.inputs_kept_for_rebuild,
    judges_load.tombstone_share,
    judges_load.store_growth,
    judges_load.lag_within_limits,
    judges_load.keys_are_spread,
    owner_and_objective_declared,
)


def judge(facts: GovernanceFacts, declared: Declared) -> tuple[GovernanceVerdict, ...]:
    """Every check, in the order of `findings.CHECKS`."""
    return tuple(check(facts, declared) for check in _JUDGES)
