"""Prefill progress messages between replicas, from admission to the first token.

A policy that counts the work left on a rank deducts the finished part of the oldest prefill. The
admitting replica sees the progress in the rank's KV events; other replicas do not know the blocks
of the prompt. Every PROGRESS_S each replica therefore sends, for the oldest own prefill of each
rank, the number of finished tokens if larger than before. The next message or
the first token makes up for a lost message.

Bytes: a msgpack map with named fields, unknown fields ignored; on a topic that other
implementations do not read.
"""

from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct

from select_service.core.identity import PartitionKey
from select_service.core.load.compiled.progress_kernels import WALKED_BLOCKS_MAX
from select_service.core.load.compiled.progress_sync_kernels import (
    apply_peer_progress,
    gather_progress,
)
from select_service.core.load.reservations import Reservations
from select_service.core.placement.prompt import ISL_TOKENS_MAX
from select_service.core.registry.fleet.partition import Partition
from select_service.core.replication.load_events import DETAIL_CHARS_MAX, PeerFrameError
from select_service.core.replication.replica_liveness import ReplicaLiveness
from select_service.schemas.common import ID_CHARS_MAX

PROGRESS_TOPIC = b"select-service.progress.v1"
PROGRESS_S = 0.1
ROWS_MAX = 256
"""Maximum prefills per message; creating or applying a message takes about a millisecond."""
MESSAGES_MAX = 8
"""Maximum messages per round; the rest follows in the next round."""
PROGRESS_BYTES_MAX = 640 * 1024
"""Size of the maximum number of rows with ids of maximum length."""
PARTITION_WORK = 256
"""Minimum cost of examining a partition; a turn is limited to WALKED_BLOCKS_MAX in total."""


class PrefillProgress(Struct, array_like=True, frozen=True):
    """Progress of a prefill.

    done: finished tokens
    """

    reservation_id: Annotated[str, Meta(max_length=ID_CHARS_MAX)]
    done: Annotated[int, Meta(ge=0, le=ISL_TOKENS_MAX)]


class ProgressMessage(Struct, kw_only=True, frozen=True):
    router_id: Annotated[int, Meta(ge=0)]
    rows: Annotated[list[PrefillProgress], Meta(max_length=ROWS_MAX)]


_encode = msgspec.msgpack.Encoder().encode
_progress_of = msgspec.msgpack.Decoder(ProgressMessage).decode


def encode_progress(progress: ProgressMessage) -> bytes:
    return _encode(progress)


def decode_progress(payload: bytes) -> ProgressMessage:
    """Decode a message. Raises PeerFrameError."""
    if len(payload) > PROGRESS_BYTES_MAX:
        raise PeerFrameError(f"{len(payload)} bytes, at most {PROGRESS_BYTES_MAX} expected")
    try:
        return _progress_of(payload)
    except (ValueError, RecursionError) as error:
        raise PeerFrameError(str(error)[:DETAIL_CHARS_MAX]) from None


class ProgressExchange:
    """Sender and receiver of prefill progress."""

    def __init__(
        self,
        partitions: Mapping[PartitionKey, Partition],
        reservations: Reservations,
        origins: ReplicaLiveness,
        router_id: int,
    ) -> None:
        """Create the exchange; own is the router id of this process."""
        self._partitions, self._reservations, self._origins, self._own = (
            partitions,
            reservations,
            origins,
            router_id,
        )
        self._to_look_at: list[PartitionKey] = []
        self._first = 0
        """Slot of the last queued partition at which to continue."""
        self._n_sent = 0
        self._found = np.zeros((ROWS_MAX, 2), np.int64)
        self._results = np.zeros(2, np.int64)

    def run_turn(self, now: float, send: Callable[[bytes], None]) -> bool:
        """Work for one turn of a round, started every PROGRESS_S. Return whether more is left.

        send: sends the bytes of at most one message
        """
        if not self._to_look_at and not self._begin_round(now):
            return False
        rows = self._next_rows()
        if rows:
            send(encode_progress(ProgressMessage(router_id=self._own, rows=rows)))
            self._n_sent += 1
        if self._to_look_at and self._n_sent < MESSAGES_MAX:
            return True
        self._n_sent = 0
        return False

    def _begin_round(self, now: float) -> bool:
        """Queue the partitions; return whether there are any."""
        if self._origins.is_any_alive(now):
            follow = (
                key for key, p in self._partitions.items() if p.placer.policy.follows_prefills
            )
            self._to_look_at, self._first = list(follow), 0
        return bool(self._to_look_at)

    def _next_rows(self) -> list[PrefillProgress]:
        rows: list[PrefillProgress] = []
        work = 0
        while self._to_look_at and len(rows) < ROWS_MAX and work < WALKED_BLOCKS_MAX:
            partition = self._partitions.get(self._to_look_at[-1])
            if partition is None:
                self._next_partition()
                continue
            rows_left = ROWS_MAX - len(rows)
            n, walked = self._gather_rows(partition, rows_left)
            rows += [
                PrefillProgress(self._reservations.view_row(row).reservation_id, done)
                for row, done in self._found[:n].tolist()
            ]
            work += PARTITION_WORK + walked
            if n < rows_left:
                self._next_partition()
            else:
                # The message is full: the next turn continues in this partition behind the last
                # slot.
                self._first = self._reservations.view_row(int(self._found[n - 1, 0])).slot + 1
        return rows

    def _next_partition(self) -> None:
        self._to_look_at.pop()
        self._first = 0

    def _gather_rows(self, partition: Partition, rows_left: int) -> tuple[int, int]:
        """Return the number of rows, and the work to find them."""
        gather_progress(
            partition.index.header,
            partition.load.header,
            partition.block_size,
            self._first,
            self._found[:rows_left],
            self._results,
        )
        n, walked = self._results.tolist()
        return n, walked

    def apply_progress(self, progress: ProgressMessage) -> bool:
        """Apply the progress of a peer's own prefills; return False for a message of this process.

        Ids that are not booked here, or admitted by another replica, are ignored.
        """
        if progress.router_id == self._own:
            return False
        header = self._reservations.memory.header
        for row in progress.rows:
            booking = self._reservations.find_reservation(row.reservation_id)
            # Only the admitting replica may report progress; ids may be reused by another.
            if booking is not None and booking.origin == progress.router_id:
                apply_peer_progress(header, booking.row, row.done)
        return True
