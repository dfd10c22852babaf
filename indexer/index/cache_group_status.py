"""Cache groups of a rank for operators: an immutable copy that any thread may read."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from indexer.index.cache_groups import CacheGroups
from indexer.index.reuse_layouts import RankLayout

KIND_CHARS_MAX = 64
"""Limit of characters of a kind, which the engine chooses."""
REASON_CHARS_MAX = 256
ALIGNMENT_REASON = "block sizes of its groups are no multiples of the registered block_size"


class GroupStatus(NamedTuple):
    """Cache group of a rank.

    tier: tier or lane of the rank's slot; None without a lane
    blocks: blocks that the slot holds there
    """

    number: int
    kind: str
    block_size: int
    tier: int | None
    is_dense: bool
    blocks: int = 0


class CacheGroupStatus(NamedTuple):
    """Cache groups of a rank, and whether reusable prefixes are exact.

    unit: tokens of the unit by which the engine names prefixes
    reasons: reasons why reusable prefixes are not certain; empty if they are exact
    lookahead: tokens behind a block that the block's name covers
    is_doubtful: whether prefixes may be too long or too short, rather than upper bounds
    """

    groups: tuple[GroupStatus, ...]
    unit: int
    reasons: tuple[str, ...]
    lookahead: int = 0
    is_doubtful: bool = False

    @property
    def is_bound(self) -> bool:
        """True if reusable prefixes are upper bounds, or not certain at all."""
        return bool(self.reasons)

    @property
    def certainty(self) -> Literal["exact", "at_most", "unknown"]:
        """Certainty of reusable prefixes."""
        if self.is_doubtful:
            return "unknown"
        return "at_most" if self.reasons else "exact"

    @property
    def has_only_sparse_groups(self) -> bool:
        """True if groups are known and none is dense."""
        return bool(self.groups) and not any(group.is_dense for group in self.groups)

    def add_counts(self, blocks: Sequence[int]) -> "CacheGroupStatus":
        """Return a copy with the blocks of each group."""
        pairs = zip(self.groups, blocks, strict=True)
        return self._replace(groups=tuple(group._replace(blocks=count) for group, count in pairs))


def describe_groups(groups: CacheGroups, layout: RankLayout | None) -> CacheGroupStatus | None:
    """Return the status of groups with this layout; None if the tree alone decides.

    Only the thread that applies the rank's events may call this.
    """
    if layout is None:
        return None
    doubts = groups.doubt_reasons()
    reasons = doubts + groups.bound_reasons()
    if not reasons and layout.bound:
        reasons = (ALIGNMENT_REASON,)
    return CacheGroupStatus(
        groups=tuple(
            GroupStatus(g.number, g.kind[:KIND_CHARS_MAX], g.size, g.tier, g.is_dense)
            for g in groups
        ),
        unit=groups.unit,
        reasons=tuple(reason[:REASON_CHARS_MAX] for reason in reasons),
        lookahead=groups.lookahead,
        is_doubtful=bool(doubts),
    )
