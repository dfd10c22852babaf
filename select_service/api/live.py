"""What GET /live tells: the fleet in numbers, for a page that is open.

First comes what was before (see `live_history`).
A frame is made a second, in turns of the event loop (see `watching`).
"""

from collections.abc import AsyncIterator, Iterator
from functools import partial
from time import monotonic
from typing import Any

import msgspec
from msgspec import Struct

from select_service.access.guard import Grant
from select_service.access.roles import OPERATOR
from select_service.api.compact import compact_ranks
from select_service.api.service import Service
from select_service.api.watching import Frame, Meter, Parts, Shown
from select_service.bodies.admission import ClassState
from select_service.bodies.compact import CompactRanks
from select_service.core.identity import PartitionKey
from select_service.core.views.decisions import DecisionFilter
from select_service.turns import in_turns

DECISIONS_SHOWN = 20
EVENT_STREAM = "text/event-stream"
_encode = msgspec.json.Encoder().encode


class LivePartition(Struct, kw_only=True):
    """Its ranks now, and what its decisions have come to since it began."""

    ranks: CompactRanks
    """As in `/workers?view=compact`."""
    block_size: int | None = None
    """Tokens in a block of the model; null while nobody can be chosen."""
    policy: str | None = None
    """By which ranks are chosen."""
    decided: int = 0
    """Decisions, with and without a booking."""
    prompt_blocks: int = 0
    """Complete blocks of their prompts."""
    chosen_overlap: int = 0
    """Leading blocks of those that the chosen ranks held."""
    best_overlap: int = 0
    """Leading blocks that the ranks held of which none held more."""
    checks_refused: list[int] = []
    """Workers whose engines refuse health checks."""


async def _seen(service: Service) -> Parts:
    meter = Meter()
    partitions = await in_turns(meter.timed(_partitions(service)))
    decisions = await in_turns(meter.timed(_decisions(service)))
    return Parts(partitions, decisions, _whole(service), meter.spent_s)


def _partitions(service: Service) -> Iterator[Shown | None]:
    deleted = service.selector.fleet.catalog.deleted()
    there = [w for w in service.selector.workers() if w.worker_id not in deleted]
    for ranks in compact_ranks(service, there):
        if ranks is not None:
            yield Shown(ranks.tenant_id, _raw(_partition(service, ranks)))
        yield None


def _partition(service: Service, ranks: CompactRanks) -> LivePartition:
    key = PartitionKey(ranks.model_name, ranks.tenant_id)
    partition = service.selector.fleet.partitions.get(key)
    if partition is None:
        return LivePartition(ranks=ranks)
    fitness = service.selector.fitness
    refusing = () if fitness is None else fitness.monitor.refusing()
    tally = partition.placing.tally
    return LivePartition(
        ranks=ranks,
        block_size=partition.block_size,
        policy=partition.placing.choice.policy,
        decided=tally.selected + tally.reserved,
        prompt_blocks=tally.prompt_blocks,
        chosen_overlap=tally.chosen_overlap,
        best_overlap=tally.best_overlap,
        checks_refused=sorted(set(ranks.worker_ids).intersection(refusing)) if refusing else [],
    )


def _decisions(service: Service) -> Iterator[Shown | None]:
    explanations = service.selector.explanations
    if not len(explanations):
        return
    for row in explanations.rows(DecisionFilter(limit=DECISIONS_SHOWN), monotonic()):
        yield None if row is None else Shown(row.tenant_id, _raw(row))


def _whole(service: Service) -> dict[str, msgspec.Raw]:
    """What is of the service and not of a tenant."""
    gate = service.selector.gate
    classes = [
        ClassState(
            policy_class=name,
            waiting_requests=waiting.requests,
            waiting_isl_tokens=waiting.isl_tokens,
        )
        for name, waiting in sorted(gate.by_class().items())
    ]
    found = {"queue": _raw(classes), "queueing": _raw(gate.rules is not None)}
    if service.replicas is not None:
        found["replicas"] = _raw(service.replicas.status())
    return found


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(_encode(value))


async def events(service: Service, grant: Grant) -> AsyncIterator[bytes]:
    """Until the service ends, or its keys are others: who calls again is judged anew."""
    number, generation = 0, service.guard.generation
    history = _encode(service.history.columns(grant, monotonic()))
    yield b"event: history\ndata: %s\n\n" % history
    while not service.live.is_ending and service.guard.generation == generation:
        frame = await service.live.after(number, partial(_seen, service))
        number = frame.number
        yield b"id: %d\nevent: fleet\ndata: %s\n\n" % (number, _text(service, frame, grant))


def _text(service: Service, frame: Frame, grant: Grant) -> bytes:
    """Of a frame what this caller sees."""
    sees_all = grant.tenants is None and grant.has(OPERATOR)
    body: dict[str, Any] = {
        "version": service.version,
        "interval_s": frame.interval_s,
        "partitions": [part.text for part in frame.parts.partitions if grant.sees(part.tenant_id)],
        "decisions": [row.text for row in frame.parts.decisions if grant.sees(row.tenant_id)],
    }
    return _encode(body | (frame.parts.whole if sees_all else {}))
