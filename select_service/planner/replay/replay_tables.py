"""Tables of replay results, a configuration a line."""

from collections.abc import Iterable, Iterator

from select_service.planner.core.reasons import Reason
from select_service.planner.deployment_status import DeploymentStatus
from select_service.planner.replay.log_replay import ReplayComparison
from select_service.planner.replay.planner_run import ReplayOutcome

DIFFERENCES_SHOWN_MAX = 20
"""Maximum differences shown of a deployment."""
_COLUMNS = (
    ("kept", 7),
    ("TTFT", 7),
    ("ITL", 7),
    ("GPU h", 9),
    ("of least", 9),
    ("reversals/h", 12),
    ("ups", 5),
    ("downs", 6),
    ("most", 7),
    ("over s", 7),
    ("failed", 7),
    ("rejected", 9),
    ("open", 6),
)


def outcome_table(found: Iterable[tuple[str, ReplayOutcome]]) -> Iterator[str]:
    """Yield the table of a trace."""
    rows = [(name, _outcome_cells(outcome)) for name, outcome in found]
    wide = max(len(name) for name, _ in rows)
    heads = "".join(head.rjust(width) for head, width in _COLUMNS)
    yield " " * wide + heads
    for name, cells in rows:
        yield name.ljust(wide) + "".join(
            cell.rjust(width) for cell, (_, width) in zip(cells, _COLUMNS, strict=True)
        )


def model_advice(name: str, status: DeploymentStatus) -> Iterator[str]:
    """Yield a line if no tick of a run could size the fleet."""
    # A model that became ready once was only learning before, which is no fault.
    if 0 < status.ticks == status.by_reason[Reason.MODEL_NOT_READY]:
        yield (
            f"{name}: model_not_ready in all {status.ticks} ticks, so nothing was sized: begin "
            "with more engines (--replicas), or set enable_load_scaling or profile_results_dir"
        )


def _outcome_cells(of: ReplayOutcome) -> tuple[str, ...]:
    """Return the cells of an outcome."""
    least = of.least_gpu_hours
    return (
        f"{of.attainment:.4f}",
        f"{of.attainment_ttft:.4f}",
        f"{of.attainment_itl:.4f}",
        f"{of.gpu_hours:.2f}",
        f"{of.gpu_hours / least:.2f}" if least else "-",
        f"{of.reversals_an_hour:.2f}",
        str(sum(of.scale_ups.values())),
        str(sum(of.scale_downs.values())),
        "+".join(str(count) for count in of.most_replicas.values()),
        f"{of.over_budget_s:.0f}",
        str(of.failed),
        str(of.rejected),
        str(of.unfinished),
    )


def comparison_table(found: Iterable[tuple[str, list[ReplayComparison]]]) -> Iterator[str]:
    """Yield the comparison of a log."""
    for name, deployments in found:
        yield f"{name}:"
        for one in deployments:
            start = "" if one.from_start else ", the log does not include the start"
            shared = f", {one.shared} shared a cluster and are not compared" if one.shared else ""
            yield (
                f"  {one.deployment}: {one.ticks} ticks, {one.same} the same, "
                f"{one.differing} differ{shared}{start}"
            )
            for each in one.differences[:DIFFERENCES_SHOWN_MAX]:
                what = "same decision, other diagnostics" if each.thoughts else ""
                decided = what or f"{_format_counts(each.recorded)} -> {_format_counts(each.now)}"
                yield f"    at {each.at_s:.3f}: {decided}"


def _format_counts(of: object) -> str:
    """Format counts."""
    if not isinstance(of, dict):
        return "nothing"
    return " ".join(f"{role}={count}" for role, count in of.items())
