"""Listener of the ledger that fills the assumed blocks, and the turns that remove blocks.

Nothing listens until the first partition assumes blocks.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from indexer.hashing.block_hashing import Tokens, compute_sequence_hashes, hash_blocks
from indexer.index.prefix_index import PrefixIndex
from indexer.index.slot_writer import SlotWriter
from indexer.tiers import Tier
from select_service.core.assumed.assumed_blocks import AssumedBlocks, AssumedRank
from select_service.core.assumed.pending_prompts import PendingPrompt, PendingPrompts
from select_service.core.identity import PartitionKey
from select_service.core.load.ledger import Cause, Ledger
from select_service.core.load.new_reservation import (
    BOOKED_BLOCKS_MAX,
    LoadAccount,
    NewReservation,
    PromptEnd,
)
from select_service.core.load.reservation_view import ReservationView
from select_service.schemas.common import AnswerResult

STEPS_PER_TURN = 4
"""Steps of clears and expiry per turn, a millisecond at most each."""


class AssumingPartition(Protocol):
    """Partition, as far as assumed blocks are concerned."""

    index: PrefixIndex
    account: LoadAccount
    assumed: AssumedBlocks | None
    block_size: int

    def writer_at(self, slot: int) -> SlotWriter:
        """Return the writer of the announcements of an occupied slot."""


class AssumptionFollower:
    """Follower of bookings; used by the event loop thread only."""

    def __init__(
        self, partitions: Mapping[PartitionKey, AssumingPartition], ledger: Ledger
    ) -> None:
        self._partitions = partitions
        self._ledger = ledger
        self.pending = PendingPrompts()
        self.answers: dict[AnswerResult, int] = dict.fromkeys(
            ("added", "not_assumed", "prompt_unknown", "prompt_evicted"), 0
        )
        """Answers with reported tokens, by what became of the blocks."""
        self._ends: dict[str, PromptEnd] = {}
        """Ends of the prompts of live reservations."""
        self._is_following = False

    def begin(self) -> None:
        """Follow bookings from now on."""
        if not self._is_following:
            self._is_following = True
            self._ledger.add_listener(self)

    def on_booked(self, booking: NewReservation, cause: Cause, now: float) -> None:
        partition = self._partitions.get(booking.key)
        if partition is None or partition.assumed is None or not len(booking.block_hashes):
            return
        # A slot of an older partition of this name is about to be emptied.
        if partition.account is not booking.account:
            return
        rank = partition.assumed.rank_at(booking.slot)
        if rank is None:
            return
        if rank.is_beside_events:
            self._predict(partition, rank, booking, now)
            return
        path = booking.block_hashes
        names = partition.assumed.name_prompt(path, booking.sequence_hashes)
        partition.assumed.use_prompt(booking.slot, path, names, now)
        if booking.prompt_end is not None:
            self._ends[booking.reservation_id] = booking.prompt_end

    def _predict(
        self, partition: AssumingPartition, rank: AssumedRank, booking: NewReservation, now: float
    ) -> None:
        """Assume a prompt until the engine announces the blocks, or for the rank's time."""
        assumed, path = partition.assumed, booking.block_hashes[:BOOKED_BLOCKS_MAX]
        assert assumed is not None
        confirmed = partition.index.count_held(booking.slot, Tier.GPU, path)
        if confirmed == len(path):
            return
        writer = partition.writer_at(booking.slot)
        names = assumed.name_prompt(path, booking.sequence_hashes)
        assumed.use_prompt(booking.slot, path, names, now)
        self.pending.add_prompt(
            PendingPrompt(
                assumed,
                partition.index,
                writer,
                path,
                names,
                now,
                now + rank.ttl_s,
                writer.n_clears,
                confirmed,
            )
        )

    def on_prefill_completed(self, booking: ReservationView, cause: Cause, now: float) -> None:
        """Ignore the end of a prefill: the blocks are assumed since the booking."""

    def on_released(self, booking: ReservationView, cause: Cause, now: float) -> None:
        if cause != "moved":
            self._ends.pop(booking.reservation_id, None)
        partition = self._partitions.get(booking.key)
        if cause == "given_up" and partition is not None and partition.assumed is not None:
            # The rank is dead: a restarted engine has an empty cache.
            partition.assumed.begin_clear(booking.slot, now, keeps_live=False)

    def add_answer(self, booking: ReservationView, tokens: Tokens, now: float) -> AnswerResult:
        """Assume the blocks of the answer to a live reservation, behind the prompt.

        tokens: uint32[n], all tokens of the answer
        """
        result = self._add_answer(booking, tokens, now)
        self.answers[result] += 1
        return result

    def _add_answer(self, booking: ReservationView, tokens: Tokens, now: float) -> AnswerResult:
        partition = self._partitions.get(booking.key)
        if partition is None or partition.assumed is None:
            return "not_assumed"
        assumed, rank = partition.assumed, partition.assumed.rank_at(booking.slot)
        if rank is None or rank.is_beside_events:
            return "not_assumed"
        end, size = self._ends.get(booking.reservation_id), partition.block_size
        n_prompt = booking.isl_tokens // size
        prompt = booking.first_hashes(n_prompt)
        if end is None or len(prompt) < n_prompt or n_prompt > BOOKED_BLOCKS_MAX:
            return "prompt_unknown"
        answer = hash_blocks(np.concatenate([end.tokens, tokens]), size, size, end.seed)
        answer = answer[: BOOKED_BLOCKS_MAX - n_prompt]
        # The next turn's prompt names these blocks by the same chain.
        chained = compute_sequence_hashes(np.concatenate([prompt[-1:], answer]))[len(prompt[-1:]) :]
        names = assumed.name_prompt(prompt, prompt)
        names = np.concatenate([names, assumed.name_prompt(answer, chained, names[-1:])])
        is_there = assumed.extend_prompt(booking.slot, names, answer, now)
        return "added" if is_there else "prompt_evicted"

    def run_turn(self, now: float) -> bool:
        """Take bounded steps of clears, expiry and confirmation; return whether more are due."""
        if not self._is_following:
            return False
        self.pending.run_step(now)
        left = STEPS_PER_TURN
        for partition in list(self._partitions.values()):
            while left and partition.assumed is not None and partition.assumed.run_step(now):
                left -= 1
            if not left:
                return True
        return False
