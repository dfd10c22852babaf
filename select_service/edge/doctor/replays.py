"""EDGE: the newest batches of a rank, asked for again and read: their clock, their blocks, and are
those found in the index by their tokens?  All of it on a thread that may wait.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from indexer.events.event_types import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    DecodeError,
    hashable_blocks,
    local_hashes,
)
from indexer.events.kv_events import decode
from indexer.index.prefix_index import PrefixIndex
from indexer.sockets.curve import CurveServer
from indexer.sockets.names import Names
from indexer.sockets.replay_question import NO_BATCH, Bounds, ask_replay
from select_service.core.doctor.facts import Replayed
from select_service.unreadable_json import UNREADABLE

BATCHES_MAX = 32
TIMEOUT_S = 3.0
CHAINS_MAX = 16
BLOCKS_MAX = 64
"""Of a chain."""


class Wanted(NamedTuple):
    """server: with which keys the engine is talked to; None: with none
    last:        number of the newest batch; None: there was none
    received_at: wall clock when it came; None: not known
    is_live:     did it come when it was published, and by no replay?
    prefixes, slot: where its blocks should be
    """

    endpoint: str
    server: CurveServer | None
    last: int | None
    received_at: float | None
    is_live: bool
    prefixes: PrefixIndex
    slot: int
    block_size: int
    is_eagle: bool


def replayed(names: Names, wanted: Wanted) -> Replayed:
    """Blocks, for TIMEOUT_S at most and some milliseconds of work."""
    start = NO_BATCH if wanted.last is None else max(0, wanted.last + 1 - BATCHES_MAX)
    most = Bounds(BATCHES_MAX, TIMEOUT_S)
    answer = ask_replay(names, wanted.endpoint, wanted.server, start, most)
    if answer.error is not None:
        return Replayed(error=answer.error)
    stored, sizes = _stored(payload for _, payload in answer.batches)
    checked, found = _looked_for(wanted, stored)
    return Replayed(
        batches=len(answer.batches),
        block_sizes=tuple(sorted(sizes)),
        clock_s=_clock(wanted, dict(answer.batches)),
        checked=checked,
        found=found,
    )


def _clock(wanted: Wanted, batches: dict[int, bytes]) -> float | None:
    """By how much the engine's clock was ahead when it published the newest batch."""
    payload = None if wanted.last is None else batches.get(wanted.last)
    if payload is None or wanted.received_at is None:
        return None
    try:
        (stamp, *_) = msgspec.msgpack.decode(payload, type=list[msgspec.Raw])
        published_at = msgspec.msgpack.decode(stamp, type=float)
    except UNREADABLE:
        return None
    ahead_s = published_at - wanted.received_at
    return ahead_s if ahead_s > 0.0 or wanted.is_live else None


def _stored(payloads: Iterator[bytes]) -> tuple[list[BlockStored], set[int]]:
    """Beginnings of prompts that are still there at the end, newest last; sizes of all blocks."""
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
                    heads[int(event.block_hashes[0])] = event
    return list(heads.values())[-CHAINS_MAX:], sizes


def _looked_for(wanted: Wanted, stored: list[BlockStored]) -> tuple[int, int]:
    """First blocks that were looked for in the index, and found for the slot."""
    checked = found = 0
    for event in stored:
        if not hashable_blocks(event, wanted.block_size, wanted.is_eagle):
            continue
        path = local_hashes(event, wanted.block_size, wanted.is_eagle, at_most=BLOCKS_MAX)
        matched = wanted.prefixes.match(path)
        checked += 1
        found += wanted.slot < len(matched) and int(matched[wanted.slot].max()) > 0
    return checked, found
