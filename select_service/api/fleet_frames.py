"""Event stream GET /live: the fleet in numbers, for an open page.

The stream begins with the recent past (see `live_history`), followed by a frame per second.  All
viewers share the frames, which are computed in small steps (see `watching`).
"""

from collections.abc import AsyncIterator, Iterator
from functools import partial
from time import monotonic
from typing import Any

import msgspec
from msgspec import Struct

from select_service.api.compact_views import compact_ranks
from select_service.api.live.live_stream import CpuTimer, FrameContents, LiveFrame, TenantItem
from select_service.api.service_context import ServiceContext
from select_service.auth.guard import Grant
from select_service.auth.roles import OPERATOR
from select_service.base.cooperative import collect_cooperatively
from select_service.core.admission.admission_state import list_class_states
from select_service.core.identity import PartitionKey
from select_service.core.pairs.pair_report import make_pair_report
from select_service.core.views.decision_views import DecisionFilter
from select_service.core.views.shared_cache_views import make_shared_cache_view
from select_service.schemas.compact import CompactRanks

DECISIONS_SHOWN = 20
SHARED_CACHES_SHOWN = 32
EVENT_STREAM = "text/event-stream"
_encode_json = msgspec.json.Encoder().encode


class LivePartition(Struct, kw_only=True):
    """Current ranks of a partition, and totals of its decisions since the start."""

    ranks: CompactRanks
    """Ranks as in `/workers?view=compact`."""
    block_size: int | None = None
    """Tokens in a block of the model; null without schedulable workers."""
    policy: str | None = None
    """Placement policy of the partition."""
    decided: int = 0
    """Decisions, with and without a booking."""
    prompt_blocks: int = 0
    """Complete blocks of the prompts."""
    chosen_overlap: int = 0
    """Leading prompt blocks held by the chosen ranks."""
    best_overlap: int = 0
    """Leading prompt blocks held by the rank with the longest prefix."""
    checks_refused: list[int] = []
    """Workers with engines that refuse health checks."""


class LiveLink(Struct, kw_only=True):
    """Tokens of booked pairs that have to leave and to enter a host."""

    host: str
    leaving: float
    entering: float


class LivePairs(Struct, kw_only=True):
    """Pairs of prefill and decode ranks: live legs, decisions since the start, transfers, links."""

    prefill_legs: int
    decode_legs: int
    remote: int
    local: int
    transfers: int
    lost_legs: int
    links: list[LiveLink]


async def _collect_contents(service: ServiceContext) -> FrameContents:
    """Collect the contents of a frame, measuring the CPU time spent."""
    meter = CpuTimer()
    partitions = await collect_cooperatively(meter.time_steps(_partition_items(service)))
    decisions = await collect_cooperatively(meter.time_steps(_decision_items(service)))
    return FrameContents(partitions, decisions, _service_contents(service), meter.spent_s)


def _partition_items(service: ServiceContext) -> Iterator[TenantItem | None]:
    deleted = service.fleet.catalog.deleted_workers()
    there = [w for w in service.selector.list_workers() if w.worker_id not in deleted]
    for ranks in compact_ranks(service, there):
        if ranks is not None:
            yield TenantItem(ranks.tenant_id, _encode_raw(_partition_view(service, ranks)))
        yield None


def _partition_view(service: ServiceContext, ranks: CompactRanks) -> LivePartition:
    key = PartitionKey(ranks.model_name, ranks.tenant_id)
    partition = service.fleet.partitions.get(key)
    if partition is None:
        return LivePartition(ranks=ranks)
    fitness = service.health
    refusing = () if fitness is None else fitness.monitor.refusing_workers()
    tally = partition.placer.total_tally
    return LivePartition(
        ranks=ranks,
        block_size=partition.block_size,
        policy=partition.placer.policy_choice.policy,
        decided=tally.selected + tally.reserved,
        prompt_blocks=tally.prompt_blocks,
        chosen_overlap=tally.chosen_overlap,
        best_overlap=tally.best_overlap,
        checks_refused=sorted(set(ranks.worker_ids).intersection(refusing)) if refusing else [],
    )


def _decision_items(service: ServiceContext) -> Iterator[TenantItem | None]:
    explanations = service.followers.explanations
    if not len(explanations):
        return
    for row in explanations.list_decisions(DecisionFilter(limit=DECISIONS_SHOWN), monotonic()):
        yield None if row is None else TenantItem(row.tenant_id, _encode_raw(row))


def _service_contents(service: ServiceContext) -> dict[str, msgspec.Raw]:
    """Return the contents that belong to the service and not to a tenant."""
    gate = service.gate
    found = {
        "queue": _encode_raw(list_class_states(gate)),
        "queueing": _encode_raw(gate.rules is not None),
    }
    if service.selector.pairs.n_decided or service.selector.pairs.book.legs:
        found["pairs"] = _encode_raw(_pairs_view(service))
    status = service.features.replicas.replica_status()
    if status.enabled:
        found["replicas"] = _encode_raw(status)
    if service.features.shared_caches is not None:
        caches = service.features.shared_caches.list_status()
        # Those that do not answer come first.
        caches.sort(key=lambda each: each.is_answering is not False)
        shown = [make_shared_cache_view(each) for each in caches[:SHARED_CACHES_SHOWN]]
        found["shared_caches"] = _encode_raw(shown)
    return found


def _pairs_view(service: ServiceContext) -> LivePairs:
    report = make_pair_report(service.selector.pairs)
    hosts = sorted({host for host, _ in report.links})
    return LivePairs(
        prefill_legs=report.live["prefill"],
        decode_legs=report.live["decode"],
        remote=report.decisions["remote"],
        local=report.decisions["local"],
        transfers=report.transfers,
        lost_legs=report.lost_legs,
        links=[
            LiveLink(
                host=host,
                leaving=report.links.get((host, "leaving"), 0.0),
                entering=report.links.get((host, "entering"), 0.0),
            )
            for host in hosts
        ],
    )


def _encode_raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(_encode_json(value))


async def stream_frames(service: ServiceContext, grant: Grant) -> AsyncIterator[bytes]:
    """Yield the stream until the service ends or the keys change: clients then authenticate
    again.
    """
    number, generation = 0, service.guard.generation
    history = _encode_json(service.live.history.visible_columns(grant, monotonic()))
    yield b"event: history\ndata: %s\n\n" % history
    # A client that reads slowly skips frames: the next frame is requested only after the last
    # write.
    while not service.live.frame_broadcaster.is_ending and service.guard.generation == generation:
        frame = await service.live.frame_broadcaster.frame_after(
            number, partial(_collect_contents, service)
        )
        number = frame.number
        yield b"id: %d\nevent: fleet\ndata: %s\n\n" % (number, _frame_text(service, frame, grant))


def _frame_text(service: ServiceContext, frame: LiveFrame, grant: Grant) -> bytes:
    """Return the JSON of a frame, reduced to the tenants visible to the caller."""
    sees_all = grant.tenants is None and grant.has_any_role(OPERATOR)
    body: dict[str, Any] = {
        "version": service.version,
        "interval_s": frame.interval_s,
        "partitions": [
            part.text for part in frame.parts.partitions if grant.can_see_tenant(part.tenant_id)
        ],
        "decisions": [
            row.text for row in frame.parts.decisions if grant.can_see_tenant(row.tenant_id)
        ],
    }
    return _encode_json(body | (frame.parts.service_contents if sees_all else {}))
