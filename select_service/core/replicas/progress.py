"""How far prefills are: what replicas tell each other between the admission and the first token.

A policy that counts the work left on a rank takes off what is done of its oldest prefill.  The one
who admitted that sees it in the rank's KV events; the others do not know the blocks of the prompt.
So every PROGRESS_S each replica tells, of the oldest prefill of each rank that is its own, how many
tokens are done, where that is more than it has told.  What is lost is made up for by what comes
next, or by the first token.

Bytes: a msgpack map with named fields, unknown ones ignored; on a topic that others do not read.
"""

from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct

from select_service.bodies.common import ID_CHARS_MAX
from select_service.core.decide.prompt import ISL_TOKENS_MAX
from select_service.core.fleet.partition import Partition
from select_service.core.identity import PartitionKey
from select_service.core.load.progress_kernels import WALKED_BLOCKS_MAX
from select_service.core.load.reservations import Reservations
from select_service.core.load.told_kernels import gather_progress, hear_progress
from select_service.core.replicas.events import DETAIL_CHARS_MAX, FrameError
from select_service.core.replicas.origins import Origins

TOPIC = b"select-service.progress.v1"
PROGRESS_S = 0.1
ROWS_MAX = 256
"""Prefills of one message; making or following one takes about a millisecond."""
MESSAGES_MAX = 8
"""Of one round; what is left is told in the next one."""
PROGRESS_BYTES_MAX = 640 * 1024
"""As many rows with the longest ids there may be."""
PARTITION_WORK = 256
"""What looking at a partition counts for at least; a turn looks at WALKED_BLOCKS_MAX in all."""


class Told(Struct, array_like=True, frozen=True):
    """done: tokens of its prefill"""

    reservation_id: Annotated[str, Meta(max_length=ID_CHARS_MAX)]
    done: Annotated[int, Meta(ge=0, le=ISL_TOKENS_MAX)]


class Progress(Struct, kw_only=True, frozen=True):
    router_id: Annotated[int, Meta(ge=0)]
    rows: Annotated[list[Told], Meta(max_length=ROWS_MAX)]


_encode = msgspec.msgpack.Encoder().encode
_progress_of = msgspec.msgpack.Decoder(Progress).decode


def encode(progress: Progress) -> bytes:
    return _encode(progress)


def decode(payload: bytes) -> Progress:
    """Raises FrameError."""
    if len(payload) > PROGRESS_BYTES_MAX:
        raise FrameError(f"{len(payload)} bytes, at most {PROGRESS_BYTES_MAX} expected")
    try:
        return _progress_of(payload)
    except (ValueError, RecursionError) as error:
        raise FrameError(str(error)[:DETAIL_CHARS_MAX]) from None


class ProgressExchange:
    """Tells peers of our prefills and hears of theirs."""

    def __init__(
        self,
        partitions: Mapping[PartitionKey, Partition],
        held: Reservations,
        origins: Origins,
        own: int,
    ) -> None:
        """own: our router id"""
        self._partitions, self._held, self._origins, self._own = partitions, held, origins, own
        self._to_look_at: list[PartitionKey] = []
        self._first = 0
        """Slot of the last of them with which to go on."""
        self._said = 0
        self._rows, self._done = np.zeros(ROWS_MAX, np.int64), np.zeros(ROWS_MAX, np.int64)
        self._found = np.zeros(2, np.int64)

    def step(self, now: float, say: Callable[[bytes], None]) -> bool:
        """One turn of a round, to begin every PROGRESS_S.  Returns whether there is more to do.

        say: is given the bytes of a message at most
        """
        if not self._to_look_at and not self._begin_round(now):
            return False
        rows = self._some_rows()
        if rows:
            say(encode(Progress(router_id=self._own, rows=rows)))
            self._said += 1
        if self._to_look_at and self._said < MESSAGES_MAX:
            return True
        self._said = 0
        return False

    def _begin_round(self, now: float) -> bool:
        """Is there anything to look at?"""
        if self._origins.is_any_alive(now):
            follow = (key for key, p in self._partitions.items() if p.placing.policy.follows)
            self._to_look_at, self._first = list(follow), 0
        return bool(self._to_look_at)

    def _some_rows(self) -> list[Told]:
        rows: list[Told] = []
        work = 0
        while self._to_look_at and len(rows) < ROWS_MAX and work < WALKED_BLOCKS_MAX:
            partition = self._partitions.get(self._to_look_at[-1])
            if partition is None:
                self._next_partition()
                continue
            room = ROWS_MAX - len(rows)
            n, walked = self._gather(partition, room)
            told = zip(self._rows[:n].tolist(), self._done[:n].tolist(), strict=True)
            rows += [Told(self._held.at(row).reservation_id, done) for row, done in told]
            work += PARTITION_WORK + walked
            if n < room:
                self._next_partition()
            else:
                self._first = self._held.at(int(self._rows[n - 1])).slot + 1
        return rows

    def _next_partition(self) -> None:
        self._to_look_at.pop()
        self._first = 0

    def _gather(self, partition: Partition, room: int) -> tuple[int, int]:
        """How many rows there are, and the work that it took to find them."""
        gather_progress(
            partition.index.header,
            partition.load.header,
            partition.block_size,
            self._first,
            self._rows[:room],
            self._done[:room],
            self._found,
        )
        n, walked = self._found.tolist()
        return n, walked

    def hear(self, progress: Progress) -> bool:
        """A peer says how far prefills are that it has admitted.  False: the peer is we ourselves.

        Ids that are not booked here, or not by that peer, are passed over.
        """
        if progress.router_id == self._own:
            return False
        header = self._held.memory.header
        for told in progress.rows:
            booking = self._held.find(told.reservation_id)
            if booking is not None and booking.origin == progress.router_id:
                hear_progress(header, booking.row, told.done)
        return True
