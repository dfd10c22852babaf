"""The latest decisions about pairs, for `GET /decisions/{id}`."""

from collections import deque
from collections.abc import Container, Iterator
from typing import NamedTuple

from msgspec import UNSET

from select_service.core.decision_maker import PlacementRequest
from select_service.core.pairs.stored_pair import decode_answer, read_prompt
from select_service.core.placement.decision_ring import QueueWait
from select_service.core.placement.prompt import Prompt
from select_service.schemas.pairs import PairSelection

PAIRS_KEPT_MAX = 4096
"""Limit of kept decisions about pairs, some 2 KB each."""


class PairDecision(NamedTuple):
    """Decision about a pair.

    at: seconds
    prompt_hash: sequence hash of the last whole block; None if the prompt has none
    n_ranks: number of eligible ranks
    answer: answer, without the hand-over, which may name secrets of a transfer
    number: number of the decision about pairs, from 1; 0 for a hypothetical decision
    """

    at: float
    isl_tokens: int
    prompt_blocks: int
    prompt_hash: int | None
    n_ranks: int
    policy: str
    waited: QueueWait | None
    answer: PairSelection
    number: int = 0

    @property
    def names(self) -> tuple[str | None, str | None, str]:
        """Ids of reservation and selection, and the tenant."""
        ids = self.answer.reservation_id, self.answer.selection_id
        reservation_id, selection_id = (None if each is UNSET else each for each in ids)
        return reservation_id, selection_id, self.answer.tenant_id

    def restore(self) -> "PairDecision":
        """Return the decision itself; `StoredDecision` has to read the bytes first."""
        return self


class StoredDecision(NamedTuple):
    """Decision of the fast path about a pair, which does not keep the partition alive.

    at: seconds
    names: ids of reservation and selection, and the tenant
    answer: body of the answer
    record: see stored_pair
    """

    at: float
    n_ranks: int
    policy: str
    names: tuple[str | None, str | None, str]
    answer: bytes
    record: bytes
    number: int = 0

    def restore(self) -> PairDecision:
        """Return the decision."""
        answer = decode_answer(self.answer)
        # A hand-over may name secrets of a transfer.
        answer.handoff = UNSET
        shown = _describe_prompt(read_prompt(self.record))
        return PairDecision(
            self.at, *shown, self.n_ranks, self.policy, None, answer, number=self.number
        )


class PairLog:
    """Ring of decisions, found by request id."""

    def __init__(self, kept: int) -> None:
        """kept: number of decisions; 0 means that none are recorded"""
        self.is_on = kept > 0
        self._records: deque[PairDecision | StoredDecision] = deque(
            maxlen=min(kept, PAIRS_KEPT_MAX)
        )
        self._n_recorded = 0

    def __len__(self) -> int:
        return len(self._records)

    def append(self, decision: PairDecision | StoredDecision) -> None:
        self._n_recorded += 1
        self._records.append(decision._replace(number=self._n_recorded))

    def iterate_newest(self) -> Iterator[PairDecision]:
        """Iterate over a copy of the decisions, the newest first."""
        return (each.restore() for each in reversed(list(self._records)))

    def find_by_number(self, number: int, tenants: Container[str] | None) -> PairDecision | None:
        """Return the decision of a number; arguments as for `find`."""
        at = number - 1 - (self._n_recorded - len(self._records))
        record = self._records[at] if 0 <= at < len(self._records) else None
        is_visible = record is not None and _is_visible(record, tenants)
        return record.restore() if record is not None and is_visible else None

    def find(self, name: str, tenants: Container[str] | None) -> PairDecision | None:
        """Return the newest decision with this id.  O(decisions), below a millisecond.

        tenants: visible tenants; None means all
        """
        for record in reversed(self._records):
            if name in record.names[:2] and _is_visible(record, tenants):
                return record.restore()
        return None


def _is_visible(record: PairDecision | StoredDecision, tenants: Container[str] | None) -> bool:
    return tenants is None or record.names[2] in tenants


def describe_decision(
    job: PlacementRequest, answer: PairSelection, n_ranks: int, now: float
) -> PairDecision:
    """Return the record of a decision."""
    policy = job.partition.placer.policy.name
    return PairDecision(now, *_describe_prompt(job.prompt), n_ranks, policy, job.queue_wait, answer)


def _describe_prompt(prompt: Prompt) -> tuple[int, int, int | None]:
    """Return the tokens and blocks of a prompt, and the hash of the last block, if any."""
    hashes = prompt.sequence_hashes
    return prompt.isl_tokens, len(hashes), int(hashes[-1]) if len(hashes) else None
