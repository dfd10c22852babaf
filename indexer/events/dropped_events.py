"""Events of a stream that are not indexed: counts by reason, and descriptions for operators."""

from collections import Counter
from typing import NamedTuple

from indexer.events.event_types import BlockRemoved, BlockStored
from indexer.tiers import Tier

LOGGED_CHARS_MAX = 64
"""Limit of characters shown of a name chosen by an engine."""


class SkippedEvent(NamedTuple):
    """Event that was not indexed.

    block_size: tokens per block in the event; None for an event without a size
    n_tokens:   number of tokens in the event
    """

    n_blocks: int
    block_size: int | None
    n_tokens: int
    medium: str | None
    group: int | None
    kind: str | None

    def describe(self) -> str:
        """Return a description for operators."""
        size = "" if self.block_size is None else f" of {self.block_size} tokens"
        plural = "" if self.n_blocks == 1 else "s"
        text = f"{self.n_blocks} block{plural}{size} on {(self.medium or 'GPU')[:LOGGED_CHARS_MAX]}"
        if self.group is not None:
            text += f", group {self.group}"
        if self.kind is not None:
            text += f" ({self.kind[:LOGGED_CHARS_MAX]})"
        if self.block_size is not None and self.n_tokens < self.block_size:
            text += f", with {self.n_tokens} tokens"
        return text


def _skipped_event(event: BlockStored | BlockRemoved) -> SkippedEvent:
    size, n_tokens = None, 0
    if isinstance(event, BlockStored):
        size, n_tokens = event.block_size, len(event.tokens)
    n_blocks = len(event.block_hashes)
    return SkippedEvent(n_blocks, size, n_tokens, event.medium, event.group_idx, event.kind)


class DroppedEvents:
    """Dropped events of a stream."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.counts: Counter[str] = Counter()
        """Events not indexed, by reason; the reason "rank" counts batches."""
        self._registration_fault: str | None = None
        self.size_fits = False
        """True once a block of the registered size has come since the engine's start."""
        self._last_other_size: SkippedEvent | None = None
        """Last event of another size, as long as none of the registered size has come."""
        self._last_skipped: tuple[SkippedEvent, str] | None = None
        """Last skipped event and the reason."""

    @property
    def registration_fault(self) -> str | None:
        """Description of dropped events that suggest a wrong registration, or None."""
        if self._last_other_size is None:
            return self._registration_fault
        return (
            f"dropped: {self._last_other_size.describe()}; the registered "
            f"block_size is {self._block_size}, "
            "but no block of that size has come: check it against the engine's block size"
        )

    @property
    def is_size_wrong(self) -> bool:
        """True if the registered block size probably differs from the engine's."""
        return self._last_other_size is not None

    @property
    def last_skipped(self) -> str | None:
        """Description of the last event dropped although the registration is right, or None."""
        if self._last_skipped is None:
            return None
        found, reason = self._last_skipped
        if reason in _EXPLANATIONS:
            return f"not indexed: {found.describe()}{_EXPLANATIONS[reason]}"
        return (
            f"not indexed: {found.describe()}; the index takes whole blocks of {self._block_size} "
            "tokens, and this is a chunk of a KV connector or a partial block at a prompt's end"
        )

    def skip_event(self, event: BlockStored | BlockRemoved, reason: str) -> None:
        """Count an event that is dropped although the registration is right."""
        self.counts[reason] += 1
        self._last_skipped = _skipped_event(event), reason

    def drop_unhashable(self, event: BlockStored, tier: Tier) -> None:
        """Count and describe an event without any hashable block.

        Connectors announce chunks of other sizes, and engines the end of a prompt inside a block:
        only another size on the GPU, and never the registered size, looks like a mistake.
        """
        if event.block_size == self._block_size:
            self.skip_event(event, "partial_block")
        elif tier is not Tier.GPU or self.size_fits:
            self.skip_event(event, "other_size")
        else:
            self.counts["block_size"] += 1
            self._last_other_size = _skipped_event(event)

    def note_fitting_size(self) -> None:
        """Record that the engine has blocks of the registered size, besides any others."""
        self.size_fits = True
        if self._last_other_size is not None:
            self._last_skipped = self._last_other_size, "other_size"
            self._last_other_size = None

    def drop_malformed_message(self) -> None:
        """Count a message that does not have the form of a batch of KV events."""
        self.counts["frames"] += 1
        self._registration_fault = (
            "dropped: messages other than KV events; check that kv_events_endpoint is the port of "
            "the engine's KV event publisher"
        )

    def drop_batch(self, rank: int) -> None:
        """Count a batch of a rank that the worker does not have."""
        self.counts["rank"] += 1
        self._registration_fault = (
            f"dropped: events of dp_rank {rank}, which the worker does not have; check its "
            "data_parallel_start_rank and data_parallel_size"
        )

    def drop_foreign_replay(self, rank: int | None) -> None:
        """Count a batch of another rank from the replay endpoint."""
        self.counts["replay_of_other_rank"] += 1
        self._registration_fault = (
            f"dropped: a replay of dp_rank {rank} from this rank's replay endpoint"
        )


_EXPLANATIONS = {
    "medium": ": the medium is unknown",
    "ambiguous_hashes": ": its tokens fill more blocks than it names, so no hash has a place",
    "tier_identity": ": the event leaves adapter, salt and images out, and its blocks are unknown",
    "salts": ": the table of salted sequences is full",
}
"""Explanations of reasons; other reasons are about the size of blocks."""
