"""Answers about placements and bookings, from the numbers of the core.

Load of the chosen rank:

    potential_decode_blocks = A + max(n, ceil(isl / B)) - leading
    decode_busy             = potential_decode_blocks > decode threshold * total_kv_blocks
    prefill_busy            = P > prefill threshold * max_num_batched_tokens

A and P are the active blocks and the prefill tokens of the rank before this request, n is the
number of sequence hashes, and `leading` counts the leading ones that are live on the rank.  Unlike
the decode part of a cost, the begun last block counts.

Source of the rules: the reference selection service (Dynamo) 1.6.1, measured.
"""

from math import floor, isinf
from typing import NamedTuple

import numpy as np
from msgspec import UNSET

from indexer.index.prefix_index import ReuseMatch
from select_service.base.errors import BadRequest
from select_service.core.identity import Rank
from select_service.core.load.active_load import ActiveLoad
from select_service.core.load.compiled.active_load_kernels import HALF_TOLERANCE
from select_service.core.load.compiled.load_layout import (
    FRACTIONAL_BLOCKS,
    PREFILL_TOKENS,
    WHOLE_BLOCKS,
)
from select_service.core.placement.prompt import Prompt
from select_service.core.placement.router_config import RouterConfig
from select_service.core.registry.fleet.partition import Partition, RankPlacement
from select_service.core.shared_caches.shared_hits import SharedHits
from select_service.schemas.common import MATCH_CERTAINTIES
from select_service.schemas.reservations import Reservation, ReservationRequest
from select_service.schemas.selection import ChosenRankLoad, Overlap, Selection, SelectRequest
from select_service.schemas.shared_caches import SharedOverlap

RETURNED_HASHES_MAX = 131_072
"""Maximum number of sequence hashes in an answer, some milliseconds of work."""
UNKNOWN_CAPACITY_TOKENS = 10_000_000
"""Prefill capacity in answers about a worker without `max_num_batched_tokens`, as in Dynamo."""


class AnsweredBusyThresholds(NamedTuple):
    """Shares of a rank's capacity above which answers call the rank busy; None: no judgement.

    decode: share of `total_kv_blocks`
    prefill: share of `max_num_batched_tokens`
    """

    decode: float | None = None
    prefill: float | None = None


NO_BUSY_THRESHOLDS = AnsweredBusyThresholds()


def describe_booking(
    selection: Selection, reservation_id: str, prompt: Prompt, config: RouterConfig
) -> None:
    """Add the fields that only answers about a booking have."""
    selection.selection_id = selection.reservation_id = reservation_id
    selection.isl_tokens = prompt.isl_tokens
    selection.track_prefill_tokens = config.track_prefill_tokens


def echo_request_fields(selection: Selection, request: SelectRequest, prompt: Prompt) -> Selection:
    """Add the request's own id and, if requested, the hashes of the prompt."""
    if request.selection_id is not None:
        selection.selection_id = request.selection_id
    if request.returns_hashes and len(prompt.sequence_hashes) <= RETURNED_HASHES_MAX:
        hashes = prompt.sequence_hashes
        # Signed as in Dynamo, but for the clients of our own field, which is older.
        shown = hashes if request.include_hashes else hashes.view(np.int64)
        selection.sequence_hashes = shown.tolist()
        selection.isl_tokens = prompt.isl_tokens
    return selection


def check_hash_limit(request: SelectRequest, prompt: Prompt) -> None:
    """Raise BadRequest when a request requires more hashes than an answer may have."""
    if len(prompt.sequence_hashes) > RETURNED_HASHES_MAX and request.requires_hashes:
        field = "include_hashes" if request.include_hashes else "return_hashes"
        raise BadRequest(
            f"{field}: the prompt has {len(prompt.sequence_hashes)} blocks; "
            f"at most {RETURNED_HASHES_MAX} hashes are returned; leave {field} out"
        )


def make_selection(
    partition: Partition, slot: int, overlap: Overlap, effective_prefill_tokens: int
) -> Selection:
    """Return a selection without ids."""
    row = partition.table.row_at(slot)
    return Selection(
        model_name=partition.key.model_name,
        tenant_id=partition.key.tenant_id,
        routing_group=partition.key.tenant_id,
        worker_id=row.rank.worker_id,
        dp_rank=row.rank.dp_rank,
        endpoint=row.worker.registration.endpoint or "",
        block_size=partition.block_size,
        overlap=overlap,
        effective_prefill_tokens=effective_prefill_tokens,
    )


def overlap_of_placement(partition: Partition, placement: RankPlacement) -> Overlap:
    """Return the matched tokens of the worker: GPU tokens by rank, and cumulative best-rank
    values.
    """
    size, table = partition.block_size, partition.table
    rank = table.row_at(placement.slot).rank
    if len(table.slots_of(rank.worker_id)) > 1 or partition.index.has_layouts:
        reuse = partition.index.last_reuse(partition.placer.scratch.matched)
        overlap = overlap_of_worker(partition, rank, reuse)
    else:
        gpu, cpu, disk = size * placement.gpu, size * placement.cpu, size * placement.external
        dp = {rank.dp_rank: gpu}
        overlap = Overlap(longest_matched=disk, gpu=gpu, dp=dp, cpu=cpu, disk=disk)
    return mark_assumed(overlap, partition, placement.assumed)


def describe_shared(partition: Partition, slot: int, hits: SharedHits) -> SharedOverlap:
    """Return the result of the look-up in the shared cache for a slot of the last placement."""
    placer = partition.placer
    found = SharedOverlap(outcome=hits.outcome, tokens=0, credit=0)
    if hits.outcome == "hit":
        _, value, missing, credit = placer.shared_rows[slot].tolist()
        found.tokens, found.credit = int(missing), int(credit)
        price = 1.0 - value if value else float(placer.fetch_prices.prices(hits.link_gbps)[slot])
        found.fetch_price = UNSET if isinf(price) else round(price, 6)
    return found


def count_lookup(partition: Partition, overlap: Overlap, isl_tokens: int) -> None:
    """Count the look-up of a prompt, with the overlap of the chosen rank, if there was any."""
    if overlap.shared is UNSET:
        return
    partition.shared_credit_tokens += overlap.shared.credit
    if overlap.shared.outcome in ("hit", "miss"):
        partition.looked_up_tokens += isl_tokens
        partition.reused_tokens += overlap.longest_matched


def mark_assumed(overlap: Overlap, partition: Partition, blocks: int) -> Overlap:
    """Add the device blocks of the chosen rank that are only assumed."""
    if blocks:
        overlap.certainty, overlap.assumed = "assumed", partition.block_size * blocks
    return overlap


def overlap_of_worker(partition: Partition, rank: Rank, reuse: ReuseMatch) -> Overlap:
    """Return the overlap of a rank's worker."""
    table = partition.table
    slots = table.slots_of(rank.worker_id)
    if len(slots) == 1 and reuse.inside is None:
        # The usual worker, without arrays.
        row = [partition.block_size * blocks for blocks in reuse.matched[slots[0]].tolist()]
        gpu, cpu, _, disk = row
        return Overlap(longest_matched=disk, gpu=gpu, dp={rank.dp_rank: gpu}, cpu=cpu, disk=disk)
    tokens = partition.block_size * reuse.matched[slots].astype(np.int64)
    if reuse.inside is not None:
        tokens += reuse.inside[slots, np.newaxis]
    rows = tokens.tolist()
    ranks = (table.row_at(slot).rank.dp_rank for slot in slots)
    dp = {dp_rank: row[0] for dp_rank, row in zip(ranks, rows, strict=True)}
    gpu, cpu, _, disk = map(max, zip(*rows, strict=True))
    overlap = Overlap(longest_matched=disk, gpu=gpu, dp=dp, cpu=cpu, disk=disk)
    slot = table.find_slot(rank)
    if reuse.certainty is not None and reuse.layouts is not None and reuse.layouts[slot]:
        overlap.certainty = MATCH_CERTAINTIES[reuse.certainty[slot]]
    return overlap


def make_reservation_answer(
    request: ReservationRequest, partition: Partition, slot: int
) -> Reservation:
    row, booking_id = partition.table.row_at(slot), request.booking_id
    return Reservation(
        selection_id=booking_id if request.selection_id is None else request.selection_id,
        reservation_id=booking_id,
        model_name=partition.key.model_name,
        tenant_id=partition.key.tenant_id,
        routing_group=partition.key.tenant_id,
        worker_id=row.rank.worker_id,
        dp_rank=row.rank.dp_rank,
        endpoint=row.worker.registration.endpoint or "",
    )


def active_blocks_at(load: ActiveLoad, slot: int) -> int:
    """Return the active blocks of a slot, rounded as `ActiveLoad.compute_active_blocks` does."""
    totals = load.totals[slot]
    whole = int(totals[WHOLE_BLOCKS])
    if not totals[FRACTIONAL_BLOCKS]:
        return whole
    return floor(whole + float(load.fractions[slot]) + 0.5 + HALF_TOLERANCE)


def new_decode_blocks(partition: Partition, prompt: Prompt, n_leading: int) -> int:
    """Return the blocks that a prompt adds to a rank, with the begun last block.

    n_leading: leading blocks of the prompt that are live on the rank
    """
    begun = -(-prompt.isl_tokens // partition.block_size)
    return max(len(prompt.sequence_hashes), begun) - n_leading


def add_decode_load(
    selection: Selection,
    partition: Partition,
    slot: int,
    new_blocks: int,
    thresholds: AnsweredBusyThresholds,
) -> None:
    """Add the decode load of the chosen slot, with `new_blocks` more, to an answer."""
    blocks = active_blocks_at(partition.account.load, slot) + new_blocks
    selection.potential_decode_blocks = blocks
    if thresholds.decode is not None:
        kv_blocks = float(partition.table.columns.kv_blocks[slot])
        if kv_blocks != np.inf:
            selection.decode_busy = blocks > thresholds.decode * kv_blocks


def chosen_rank_load(
    partition: Partition, slot: int, thresholds: AnsweredBusyThresholds
) -> ChosenRankLoad:
    """Return the present load of a slot for an advisory answer."""
    columns = partition.table.columns
    batch_tokens, kv_blocks = float(columns.batch_tokens[slot]), float(columns.kv_blocks[slot])
    capacity = UNKNOWN_CAPACITY_TOKENS if batch_tokens == np.inf else int(batch_tokens)
    active = int(partition.account.load.totals[slot, PREFILL_TOKENS])
    load = ChosenRankLoad(active_prefill_tokens=active, prefill_token_capacity=capacity)
    if kv_blocks != np.inf:
        load.total_kv_blocks = int(kv_blocks)
    if thresholds.prefill is not None:
        load.prefill_busy = active > thresholds.prefill * capacity
    return load
