"""Check of a rank's event stream: requests the newest batches again for inspection.

The check reads the clock and the blocks of the batches and looks the blocks up in the index by
their tokens.  All functions run on a thread that may block.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from indexer.events.event_decoder import decode
from indexer.events.event_types import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    DecodeError,
    has_unnamed_blocks,
    hashable_blocks,
    local_hashes,
)
from indexer.index.prefix_index import PrefixIndex
from indexer.sockets.curve_keypairs import CurveServerKeys
from indexer.sockets.dns_resolver import Resolver
from indexer.sockets.replay_probe import NO_BATCH, ReplayLimits, probe_replay
from indexer.tiers import Tier, tier_of_medium
from select_service.base.decode_errors import DECODE_ERRORS
from select_service.core.doctor.facts import ReplayFacts

BATCHES_MAX = 32
TIMEOUT_S = 3.0
CHAINS_MAX = 16
BLOCKS_MAX = 64
"""Maximum number of blocks checked per chain."""


class ReplayCheck(NamedTuple):
    """Parameters of a replay check.

    server: CURVE keys of the engine; None means an unencrypted connection
    last: sequence number of the newest batch; None means there was none
    received_at: wall clock time of its receipt; None means unknown
    is_live: True when the batch was received as published and not by a replay
    prefixes, slot: index and slot that should contain the blocks
    """

    endpoint: str
    server: CurveServerKeys | None
    last: int | None
    received_at: float | None
    is_live: bool
    prefixes: PrefixIndex
    slot: int
    block_size: int
    is_eagle: bool


def check_replay(names: Resolver, check: ReplayCheck) -> ReplayFacts:
    """Request and check the newest batches.  Blocks for at most TIMEOUT_S and some milliseconds."""
    start = NO_BATCH if check.last is None else max(0, check.last + 1 - BATCHES_MAX)
    most = ReplayLimits(BATCHES_MAX, TIMEOUT_S)
    answer = probe_replay(names, check.endpoint, check.server, start, most)
    if answer.error is not None:
        return ReplayFacts(error=answer.error)
    stored, sizes = _stored_heads(payload for _, payload in answer.batches)
    checked, found = _count_indexed(check, stored)
    return ReplayFacts(
        batches=len(answer.batches),
        block_sizes=tuple(sorted(sizes)),
        clock_s=_clock_ahead(check, dict(answer.batches)),
        checked=checked,
        found=found,
    )


def _clock_ahead(wanted: ReplayCheck, batches: dict[int, bytes]) -> float | None:
    """Return by how many seconds the engine's clock was ahead at the newest batch.

    None means unknown.
    """
    payload = None if wanted.last is None else batches.get(wanted.last)
    if payload is None or wanted.received_at is None:
        return None
    try:
        (stamp, *_) = msgspec.msgpack.decode(payload, type=list[msgspec.Raw])
        published_at = msgspec.msgpack.decode(stamp, type=float)
    except DECODE_ERRORS:
        return None
    # A replayed batch is received late, which makes the clock look behind: only "ahead" is certain.
    ahead_s = published_at - wanted.received_at
    return ahead_s if ahead_s > 0.0 or wanted.is_live else None


def _stored_heads(payloads: Iterator[bytes]) -> tuple[list[BlockStored], set[int]]:
    """Return the prompt heads still stored after all batches (newest last) and all block sizes."""
    heads: dict[int, BlockStored] = {}
    sizes: set[int] = set()
    for payload in payloads:
        try:
            events = decode(payload).events
        except DecodeError:
            continue
        for event in events:
            if isinstance(event, AllBlocksCleared):
                heads.clear()
            elif isinstance(event, BlockRemoved):
                for name in event.block_hashes.tolist():
                    heads.pop(name, None)
            elif event.block_size:
                sizes.add(event.block_size)
                if event.parent is None and len(event.block_hashes):
                    # Only blocks without a parent: a chain with an unknown start cannot be hashed
                    # here.  Events of lower tiers may leave the keys of a head out.
                    name = int(event.block_hashes[0])
                    if name not in heads or tier_of_medium(event.medium) is Tier.GPU:
                        heads[name] = event
    return list(heads.values())[-CHAINS_MAX:], sizes


def _count_indexed(wanted: ReplayCheck, stored: list[BlockStored]) -> tuple[int, int]:
    """Return the numbers of first blocks looked up in the index and found for the slot."""
    checked = found = 0
    for event in stored:
        if not hashable_blocks(event, wanted.block_size, wanted.is_eagle):
            continue
        if has_unnamed_blocks(event, wanted.block_size, wanted.is_eagle):
            continue  # not indexed: its hashes have no certain place
        path = local_hashes(event, wanted.block_size, wanted.is_eagle, at_most=BLOCKS_MAX)
        matched = wanted.prefixes.match(path)
        checked += 1
        found += wanted.slot < len(matched) and int(matched[wanted.slot].max()) > 0
    return checked, found
