"""Results of replays as text, a configuration a line."""

from collections.abc import Iterable, Iterator

from select_service.planner.replay.run import Outcome
from select_service.planner.replay.what_if import Again

SHOWN_MAX = 20
"""Differences of a deployment."""
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


def outcome_table(found: Iterable[tuple[str, Outcome]]) -> Iterator[str]:
    """What became of a trace."""
    rows = [(name, _cells(outcome)) for name, outcome in found]
    wide = max(len(name) for name, _ in rows)
    heads = "".join(head.rjust(width) for head, width in _COLUMNS)
    yield " " * wide + heads
    for name, cells in rows:
        yield name.ljust(wide) + "".join(
            cell.rjust(width) for cell, (_, width) in zip(cells, _COLUMNS, strict=True)
        )


def _cells(of: Outcome) -> tuple[str, ...]:
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


def again_table(found: Iterable[tuple[str, list[Again]]]) -> Iterator[str]:
    """What became of a log."""
    for name, deployments in found:
        yield f"{name}:"
        for one in deployments:
            start = "" if one.from_start else ", and the log does not begin at the start"
            shared = f", {one.shared} shared a cluster and were not compared" if one.shared else ""
            yield (
                f"  {one.deployment}: {one.ticks} ticks, {one.same} the same, "
                f"{one.differing} differ{shared}{start}"
            )
            for each in one.differences[:SHOWN_MAX]:
                what = "same decision, other thoughts" if each.thoughts else ""
                decided = what or f"{_counts(each.recorded)} -> {_counts(each.now)}"
                yield f"    at {each.at_s:.3f}: {decided}"


def _counts(of: object) -> str:
    if not isinstance(of, dict):
        return "nothing"
    return " ".join(f"{role}={count}" for role, count in of.items())
