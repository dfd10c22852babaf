"""Many proposals -> one number for each role. Builtin and external proposers are equal here."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

LOAD_PRIORITY, THROUGHPUT_PRIORITY = 10, 20
"""Of the builtin proposers; a smaller one wins."""


class Bound(StrEnum):
    """What a proposed number means."""

    SET = "SET"
    AT_LEAST = "AT_LEAST"
    AT_MOST = "AT_MOST"


class Target(Struct, frozen=True):
    """replicas None: no opinion"""

    component: str
    type: Bound
    replicas: int | None = None


class Proposal(Struct, frozen=True, kw_only=True):
    """What one proposer says in one tick. targets None: it accepts whatever comes.

    reject: the tick ends, for this reason.  final: taken as it is, the others are not heard.
    """

    source: str
    priority: int
    targets: tuple[Target, ...] | None = None
    final: bool = False
    reject: str | None = None


class Merged(Struct, frozen=True, kw_only=True):
    """targets: by component, those of the baseline included; None: a final one had no number.

    rejected:    "source: reason" of whoever ended the tick; then there are no targets
    final_from:  whose proposal was taken as it is
    set_dropped: components of which a SET was not allowed
    """

    targets: dict[str, int | None]
    rejected: str | None = None
    final_from: str | None = None
    set_dropped: tuple[str, ...] = ()


def merge(
    proposals: Sequence[Proposal], baseline: Mapping[str, int], *, set_allowed: bool = True
) -> Merged:
    """baseline: what is there, for components that nobody names."""
    for proposal in proposals:
        if proposal.reject is not None:
            return Merged(targets={}, rejected=f"{proposal.source}: {proposal.reject}")
    finals = [proposal for proposal in proposals if proposal.final and proposal.targets is not None]
    if finals:
        return _taken(min(finals, key=lambda final: final.priority), baseline, set_allowed)
    return _bounded(proposals, baseline, set_allowed)


def _taken(final: Proposal, baseline: Mapping[str, int], set_allowed: bool) -> Merged:
    """Its last word on each component."""
    targets: dict[str, int | None] = dict(baseline)
    dropped: list[str] = []
    for target in final.targets or ():
        if target.type is Bound.SET and not set_allowed:
            dropped.append(target.component)
        else:
            targets[target.component] = target.replicas
    return Merged(targets=targets, final_from=final.source, set_dropped=tuple(dropped))


def _bounded(
    proposals: Sequence[Proposal], baseline: Mapping[str, int], set_allowed: bool
) -> Merged:
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
            if target.type is Bound.SET and not set_allowed:
                dropped.append(name)
                continue
            named[name] = None
            if target.type is Bound.AT_LEAST:
                floors[name] = max(number, floors.get(name, 0))
            elif target.type is Bound.AT_MOST:
                ceilings[name] = min(number, ceilings.get(name, number))
            elif name not in wishes or proposal.priority < wishes[name][0]:
                wishes[name] = (proposal.priority, number)
    targets: dict[str, int | None] = {}
    for name in named:
        wish = wishes[name][1] if name in wishes else baseline.get(name, 0)
        targets[name] = max(floors.get(name, 0), min(ceilings.get(name, wish), wish))
    return Merged(targets=targets, set_dropped=tuple(dropped))
