"""Stage RECONCILE: many proposals become one count for each role.

Builtin proposers and plugins are equal.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from select_service.planner.core.stages import BUILTIN_SOURCES

LOAD_PRIORITY, THROUGHPUT_PRIORITY = 10, 20
"""Priorities of the builtin proposers; a smaller one wins."""


class BoundType(StrEnum):
    """Meaning of a proposed number."""

    SET = "SET"
    AT_LEAST = "AT_LEAST"
    AT_MOST = "AT_MOST"


class ProposedCount(Struct, frozen=True):
    """Proposed count of a component. replicas None means no opinion."""

    component: str
    type: BoundType
    replicas: int | None = None


class Proposal(Struct, frozen=True, kw_only=True):
    """Proposal of one proposer in one tick. targets None means any result is accepted.

    reject: reason to end the tick without a change
    final:  whether the proposal is taken as given and the others are ignored
    """

    source: str
    priority: int
    targets: tuple[ProposedCount, ...] | None = None
    final: bool = False
    reject: str | None = None


class ReconciledCounts(Struct, frozen=True, kw_only=True):
    """Result of a reconciliation.

    targets:     counts by component, including the baseline; None if a final proposal had no number
    rejected:    "source: reason" of the proposer that ended the tick; targets are then empty
    final_from:  source of the final proposal that was taken
    set_dropped: components with a SET that was not allowed
    deciders:    source of the number that is the count, by component; none where the baseline stays
    floors:      greatest AT_LEAST of plugins by component
    """

    targets: dict[str, int | None]
    rejected: str | None = None
    final_from: str | None = None
    set_dropped: tuple[str, ...] = ()
    deciders: dict[str, str] = {}
    floors: dict[str, int] = {}

    @property
    def decided_by_plugins(self) -> set[str]:
        """Components with a count from a plugin."""
        return {
            name
            for name, source in self.deciders.items()
            if source not in BUILTIN_SOURCES and self.targets.get(name) is not None
        }

    def with_earlier(self, earlier: "ReconciledCounts") -> "ReconciledCounts":
        """Return these counts with what an earlier reconciliation has found."""
        # A later ceiling limits an earlier floor.
        kept = {name: min(n, self.targets.get(name) or 0) for name, n in earlier.floors.items()}
        floors = {name: max(n, self.floors.get(name, 0)) for name, n in kept.items()}
        return replace(
            self,
            final_from=self.final_from or earlier.final_from,
            deciders=earlier.deciders | self.deciders,
            floors=self.floors | floors,
        )


def reconcile_proposals(
    proposals: Sequence[Proposal], baseline: Mapping[str, int], *, set_allowed: bool = True
) -> ReconciledCounts:
    """Reconcile proposals; `baseline` has the counts of components without a proposal."""
    for proposal in proposals:
        if proposal.reject is not None:
            return ReconciledCounts(targets={}, rejected=f"{proposal.source}: {proposal.reject}")
    finals = [proposal for proposal in proposals if proposal.final and proposal.targets is not None]
    if finals:
        # Of several final proposals the smallest priority is taken; ties go to the first.
        return _final_targets(min(finals, key=lambda final: final.priority), baseline, set_allowed)
    return _bounded_targets(proposals, baseline, set_allowed)


def _final_targets(
    final: Proposal, baseline: Mapping[str, int], set_allowed: bool
) -> ReconciledCounts:
    """Return the targets of a final proposal, the last entry of each component."""
    targets: dict[str, int | None] = dict(baseline)
    deciders: dict[str, str] = {}
    dropped: list[str] = []
    for target in final.targets or ():
        if target.type is BoundType.SET and not set_allowed:
            dropped.append(target.component)
        else:
            targets[target.component] = target.replicas
            deciders[target.component] = final.source
    return ReconciledCounts(
        targets=targets, final_from=final.source, set_dropped=tuple(dropped), deciders=deciders
    )


class _SourcedCount(NamedTuple):
    number: int
    source: str | None
    priority: int = 0


def _bounded_targets(
    proposals: Sequence[Proposal], baseline: Mapping[str, int], set_allowed: bool
) -> ReconciledCounts:
    """Return the targets of all proposals: the SET of highest priority within all bounds."""
    floors: dict[str, _SourcedCount] = {}
    ceilings: dict[str, _SourcedCount] = {}
    wishes: dict[str, _SourcedCount] = {}
    named: dict[str, None] = dict.fromkeys(baseline)
    dropped: list[str] = []
    for proposal in proposals:
        for target in proposal.targets or ():
            name, number = target.component, target.replicas
            if number is None:
                continue
            if target.type is BoundType.SET and not set_allowed:
                dropped.append(name)
                continue
            named[name] = None
            given = _SourcedCount(number, proposal.source, proposal.priority)
            if target.type is BoundType.AT_LEAST:
                if name not in floors or number > floors[name].number:
                    floors[name] = given
            elif target.type is BoundType.AT_MOST:
                if name not in ceilings or number < ceilings[name].number:
                    ceilings[name] = given
            elif name not in wishes or proposal.priority < wishes[name].priority:
                wishes[name] = given
    targets: dict[str, int | None] = {}
    deciders: dict[str, str] = {}
    for name in named:
        chosen = wishes.get(name, _SourcedCount(baseline.get(name, 0), None))
        chosen = min(chosen, ceilings.get(name, chosen), key=_count_of)
        # The lower bound is applied last: if bounds contradict each other, more replicas are kept.
        chosen = max(chosen, floors.get(name, _SourcedCount(0, None)), key=_count_of)
        targets[name] = chosen.number
        if chosen.source is not None:
            deciders[name] = chosen.source
    required = {name: f.number for name, f in floors.items() if f.source not in BUILTIN_SOURCES}
    return ReconciledCounts(
        targets=targets, set_dropped=tuple(dropped), deciders=deciders, floors=required
    )


def _count_of(sourced: _SourcedCount) -> int:
    return sourced.number
