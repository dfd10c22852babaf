"""Merge of many proposals into one count for each role.

Builtin and external proposers are equal.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

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


class MergeResult(Struct, frozen=True, kw_only=True):
    """Result of a merge.

    targets:     counts by component, including the baseline; None if a final proposal had no number
    rejected:    "source: reason" of the proposer that ended the tick; targets are then empty
    final_from:  source of the final proposal that was taken
    set_dropped: components with a SET that was not allowed
    """

    targets: dict[str, int | None]
    rejected: str | None = None
    final_from: str | None = None
    set_dropped: tuple[str, ...] = ()


def merge_proposals(
    proposals: Sequence[Proposal], baseline: Mapping[str, int], *, set_allowed: bool = True
) -> MergeResult:
    """Merge proposals; `baseline` has the counts of components without a proposal."""
    for proposal in proposals:
        if proposal.reject is not None:
            return MergeResult(targets={}, rejected=f"{proposal.source}: {proposal.reject}")
    finals = [proposal for proposal in proposals if proposal.final and proposal.targets is not None]
    if finals:
        # Of several final proposals the one with the smallest priority is taken; ties go to the
        # first.
        return _final_targets(min(finals, key=lambda final: final.priority), baseline, set_allowed)
    return _bounded_targets(proposals, baseline, set_allowed)


def _final_targets(final: Proposal, baseline: Mapping[str, int], set_allowed: bool) -> MergeResult:
    """Return the targets of a final proposal, the last entry of each component."""
    targets: dict[str, int | None] = dict(baseline)
    dropped: list[str] = []
    for target in final.targets or ():
        if target.type is BoundType.SET and not set_allowed:
            dropped.append(target.component)
        else:
            targets[target.component] = target.replicas
    return MergeResult(targets=targets, final_from=final.source, set_dropped=tuple(dropped))


def _bounded_targets(
    proposals: Sequence[Proposal], baseline: Mapping[str, int], set_allowed: bool
) -> MergeResult:
    """Return the targets of all proposals: the SET of highest priority within all bounds."""
    floors: dict[str, int] = {}
    ceilings: dict[str, int] = {}
    wishes: dict[str, tuple[int, int]] = {}
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
            if target.type is BoundType.AT_LEAST:
                floors[name] = max(number, floors.get(name, 0))
            elif target.type is BoundType.AT_MOST:
                ceilings[name] = min(number, ceilings.get(name, number))
            elif name not in wishes or proposal.priority < wishes[name][0]:
                wishes[name] = (proposal.priority, number)
    targets: dict[str, int | None] = {}
    for name in named:
        wish = wishes[name][1] if name in wishes else baseline.get(name, 0)
        # The lower bound is applied last: if bounds contradict each other, more replicas are kept.
        targets[name] = max(floors.get(name, 0), min(ceilings.get(name, wish), wish))
    return MergeResult(targets=targets, set_dropped=tuple(dropped))
