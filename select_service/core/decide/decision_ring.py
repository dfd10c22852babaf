"""The decisions of one thread, the newest ones, as numbers."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.core.arrays import name_array
from select_service.core.decide import decision_layout as layout
from select_service.core.decide.decision_kernels import keep_decision
from select_service.core.identity import PartitionKey
from select_service.core.workers.rank_table import RankTable

WORDS_PER_DECISION = 256
"""On the average; where rows are longer fewer are kept."""
WORDS_MIN = 4 * layout.ROW_WORDS_MAX
"""One for the row of the next placement, one that may be left out before the end of the memory; so
the newest decision is always there."""
GONE_PARTITIONS_MAX = 64
"""Partitions without ranks whose decisions can still be read."""

Words = npt.NDArray[np.int64]


class Decided(NamedTuple):
    """A partition as its decisions are shown: its key, its block size, who stood in which row."""

    key: PartitionKey
    block_size: int
    table: RankTable


class Waited(NamedTuple):
    """How a request waited.  policy_class: its queue;  position: in it, from 1"""

    policy_class: str
    position: int
    seconds: float


class DecisionRing:
    """Written by kernels (`header`, see decision_layout), read here by the same thread."""

    def __init__(self, decisions_max: int, credit_fades: bool = True) -> None:
        """decisions_max: from 1;  2 KiB each on the average
        credit_fades: may the costs of a policy depend on the least prefill tokens of all ranks?
        """
        n_words = max(decisions_max * WORDS_PER_DECISION, WORDS_MIN)
        self._words: Words = np.zeros(n_words, np.int64)
        self._begins: Words = np.zeros(decisions_max, np.int64)
        self.header = np.zeros(layout.RING_LENGTH, np.int64)
        name_array(self.header, layout.WORDS, self._words)
        name_array(self.header, layout.BYTES, self._words.view(np.uint8))
        name_array(self.header, layout.BEGINS, self._begins)
        self._minima = np.zeros(layout.LANES, np.float64)
        name_array(self.header, layout.MINIMA, self._minima)
        self.header[layout.CREDIT_FADES] = credit_fades
        self._numbers = self.header.data
        self._partitions: dict[int, Decided] = {}
        self._named = 0
        self._classes: list[str] = []

    # --- what rows name by a number

    def enter(self, partition: Decided) -> int:
        """The number of a partition in the rows.  Its table remembers from now on who left."""
        gone = [number for number, known in self._partitions.items() if not len(known.table)]
        for number in gone[: max(0, len(gone) - GONE_PARTITIONS_MAX)]:
            del self._partitions[number]
        partition.table.remember()
        self._named += 1
        self._partitions[self._named] = partition
        return self._named

    def partition(self, number: int) -> Decided | None:
        """None: it is forgotten."""
        return self._partitions.get(number)

    def policy_class(self, number: int) -> str:
        return self._classes[number]

    # --- keeping

    def keep(
        self,
        now: float,
        reserved: bool,
        selection_id: str | None,
        reservation_id: str | None,
        wait: Waited | None = None,
    ) -> None:
        """Make a decision of the last placement."""
        at = keep_decision(
            self.header,
            reserved,
            now,
            selection_id is not None,
            _text_of(selection_id),
            reservation_id is not None,
            _text_of(reservation_id),
        )
        if wait is not None and at != layout.NONE:
            if wait.policy_class not in self._classes:
                self._classes.append(wait.policy_class)
            self._words[at + layout.WAITED_S] = np.float64(wait.seconds).view(np.int64)
            self._words[at + layout.POLICY_CLASS] = self._classes.index(wait.policy_class)
            self._words[at + layout.POSITION] = wait.position

    # --- reading

    def __len__(self) -> int:
        """Decisions that can be read."""
        return len(self._places())

    def rows(self) -> Iterator[Words]:
        """Those there are now, the newest first; each as it is when it is asked for.

        Rows that have been overwritten meanwhile are left out.
        """
        for number in range(self.newest, 0, -1):
            row = self.numbered(number)
            if row is None:
                break
            yield row

    @property
    def newest(self) -> int:
        """Number of the newest decision; they count from 1, so 0: there is none."""
        return int(self._numbers[layout.KEPT])

    def numbered(self, number: int) -> Words | None:
        """A decision, as `rows` has it; None: it has been overwritten."""
        assert 0 < number <= self.newest
        if self.newest - number >= len(self._begins):
            return None
        place = int(self._begins[(number - 1) % len(self._begins)])
        return self._row(place) if place >= self._whole_from() else None

    def after(self, number: int, at_most: int) -> list[Words]:
        """The decisions behind that number, the oldest first, as far as they can be read."""
        newest = self.newest
        if newest <= number:
            return []
        first = max(number, newest - len(self._begins)) + 1
        places = self._begins[(np.arange(first, newest + 1) - 1) % len(self._begins)]
        return [self._row(int(p)) for p in places[places >= self._whole_from()][:at_most]]

    def find(self, text: str) -> Words | None:
        """The newest decision with this selection or reservation id."""
        return next(self.found(text), None)

    def found(self, text: str) -> Iterator[Words]:
        """All of them, the newest first."""
        wanted = _id_words(text)
        places = self._places()
        if not len(places):
            return
        at = places[:, np.newaxis] % len(self._words) + np.arange(len(wanted))
        found = np.zeros(len(places), np.bool_)
        for begin in (layout.SELECTION_ID, layout.RESERVATION_ID):
            found |= (self._words[at + begin] == wanted).all(axis=1)
        for place in sorted(places[found].tolist(), reverse=True):
            yield self._row(place)

    def draft(self) -> Words:
        """The row of the last placement, if it is not kept."""
        assert self._numbers[layout.DRAFT_WORDS]
        return self._row(self._draft_place())

    def _row(self, place: int) -> Words:
        """A copy, with what lies behind it."""
        at = place % len(self._words)
        return self._words[at : at + layout.ROW_WORDS_MAX].copy()

    def _draft_place(self) -> int:
        """As `draft_place` of the kernels."""
        head, n_words = self._numbers[layout.HEAD], len(self._words)
        at = head % n_words
        place: int = head if at + layout.ROW_WORDS_MAX <= n_words else head + n_words - at
        return place

    def _whole_from(self) -> int:
        """Rows that begin at this place or behind it are whole, whatever is placed next."""
        return max(0, self._draft_place() + layout.ROW_WORDS_MAX - len(self._words))

    def _places(self) -> Words:
        """Of all rows that can be read, in no order."""
        kept = min(self._numbers[layout.KEPT], len(self._begins))
        places = self._begins[:kept]
        whole: Words = places[places >= self._whole_from()]
        return whole

    def check_invariants(self) -> None:
        """For tests."""
        rows = list(self.rows())
        newest = self._numbers[layout.KEPT]
        numbers = [int(row[layout.NUMBER]) for row in rows]
        assert numbers == list(range(newest, newest - len(rows), -1))
        assert len(rows) == len(self)


def _text_of(text: str | None) -> npt.NDArray[np.uint8]:
    return np.frombuffer(_bytes_of(text), np.uint8) if text else _NO_TEXT


_NO_TEXT: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)


def _bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _id_words(text: str) -> Words:
    """int64[1 + ID_WORDS]: an id as rows have it."""
    whole = _bytes_of(text)
    kept = whole
    if len(whole) > layout.ID_BYTES:
        h = 0xCBF29CE484222325
        for byte in whole:
            h = (h ^ byte) * 0x100000001B3 % 2**64
        kept = whole[: layout.ID_BYTES_KEPT] + h.to_bytes(8, "little")
    words = np.frombuffer(kept.ljust(layout.ID_BYTES, b"\0"), np.int64)
    return np.concatenate([[np.int64(len(whole))], words])


def id_in(row: Words, begin: int) -> str | None:
    """The id that begins at a word of a row; of a long one the beginning and dots."""
    length = int(row[begin])
    if length == layout.NONE:
        return None
    text = row[begin + 1 : begin + 1 + layout.ID_WORDS].tobytes()
    if length <= layout.ID_BYTES:
        return text[:length].decode("utf-8", "replace")
    return text[: layout.ID_BYTES_KEPT].decode("utf-8", "ignore") + "..."
