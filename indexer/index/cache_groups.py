"""Layout of the cache groups of a rank, from which the index computes hits.

`KvCacheFacts` adds facts that no event carries.
"""

import math

from indexer.index import reuse_layout as kinds
from indexer.index.cache_group import (
    CHUNKED_KINDS,
    NARROW_KIND,
    STATE_KINDS,
    WINDOW_KINDS,
    CacheGroup,
)
from indexer.index.groups_record import GROUPS_MAX
from indexer.index.rank_groups import RankGroups
from indexer.index.reuse_layouts import Lane, RankLayout

POSITIONS_MAX = 1 << 31
"""Limit of lengths in a layout, far beyond any prompt, whatever an engine publishes."""


class CacheGroups(RankGroups):
    """Groups of a rank with the rule by which the engine finds hits."""

    @property
    def is_plain(self) -> bool:
        """True while the tree alone decides: at most one dense group, where all matches count."""
        limits = self.facts.eagle_drop or self.facts.replay > 0 or self.lookahead > 1
        limits = limits or self.differs_ahead or bool(self._rank_reasons())
        return not limits and all(group.tier == 0 for group in self)

    def _drops(self, group: CacheGroup) -> bool:
        """Return whether the engine drops the last match of a group."""
        facts = self.facts
        if not facts.eagle_drop or self._has_older_drop:
            return False
        if facts.eagle_groups is None:
            return True
        # The engine looks groups of equal specs up together, and drops their last match together.
        equal = (g.number for g in self if self._spec(g) == self._spec(group))
        return any(number in facts.eagle_groups for number in equal)

    @property
    def _has_older_drop(self) -> bool:
        """True if the engine drops matches of several groups by a rule that is not known here.

        Source: vLLM 0.23, with arrays as events, drops otherwise than 0.33.
        """
        return self.is_array_form and self.facts.eagle_drop and len(self.groups) > 1

    def _spec(self, group: CacheGroup) -> tuple[object, ...]:
        """Return what groups that are looked up together have in common."""
        drafts = self.facts.eagle_groups or ()
        is_apart = self.facts.eagle_apart and group.number in drafts
        return group.kind, group.window, group.size, is_apart

    def layout(self) -> RankLayout | None:
        """Return the layout for the index; None if the tree alone decides."""
        if self.is_plain:
            return None
        is_fine = self.is_fine
        units = self.block_size // self.unit if is_fine else 1
        position = self.block_size // units
        sizes = [group.size for group in self] or [self.block_size]
        # A hit ends where a block of every group ends.
        align = position if is_fine else math.lcm(*sizes)
        lanes = [self._lane(group, position) for group in self if group.tier not in (0, None)]
        bound = kinds.ALWAYS if self.bound_reasons() or align % position else kinds.NEVER
        # In rising order of doubt: a later case replaces the earlier.
        if self.is_incomplete and lanes:
            bound = kinds.BLIND
        if self.doubt_reasons():
            bound = kinds.UNSURE
        return RankLayout(
            align=min(max(1, align // position), POSITIONS_MAX),
            units=units,
            drop=self._dense_drop(),
            has_dense=self._tree_decides(),
            is_single=len(self.groups) <= 1 and not self._lacks_groups(),
            replay=self.facts.replay,
            bound=bound,
            ends_tier=self.ends_tier or 0,
            ahead=self.lookahead if self.lookahead > 1 else 0,
            scheme=self.scheme if self.is_by_name else None,
            lanes=tuple(lanes),
        )

    def _tree_decides(self) -> bool:
        """Return whether hits end where the blocks of the tree do, at the latest."""
        dense = self.dense
        if dense is None:
            return not self.groups
        return dense.is_sized or len(self.groups) == 1

    def _dense_drop(self) -> int:
        """Return the positions that must be held behind a hit, whatever the lanes are."""
        dense = self.dense
        if dense is None and len(self.groups) == 1:
            # A window that is the only group looks no further than the last token.
            return int(any(g.kind in WINDOW_KINDS and self._drops(g) for g in self))
        if dense is None:
            return int(self.facts.eagle_drop and not self.groups)
        return int(self._drops(dense))

    def _lane(self, group: CacheGroup, position: int) -> Lane:
        tier = group.tier
        assert tier is not None
        drop = int(self._drops(group))
        size = group.size // position
        is_unplaced = group.number in self.unknown_lanes or self.has_hidden_parts(group)
        if is_unplaced or self.is_incomplete or not group.is_sized:
            return Lane(tier, kinds.UNKNOWN)
        if group.kind in STATE_KINDS:
            return Lane(tier, kinds.STATE)
        if group.is_dense and group.size % position == 0:
            return Lane(tier, kinds.DENSE, size, 0, drop if self.is_fine else drop * size)
        if group.kind in CHUNKED_KINDS and self.facts.chunk and group.size == position:
            return Lane(tier, kinds.CHUNKED, 1, max(1, self.facts.chunk // position))
        if group.kind in WINDOW_KINDS and group.window:
            # A token attends to itself and to window - 1 tokens before.
            need = min(max(1, -(-(group.window - 1) // group.size)), POSITIONS_MAX)
            if group.size % position == 0:
                return Lane(tier, kinds.WINDOW, size, need, drop)
            if position % group.size == 0:
                parts = position // group.size
                return Lane(tier, kinds.WINDOW, 1, need, 0, parts, self.lookahead)
        return Lane(tier, kinds.UNKNOWN)

    def has_hidden_parts(self, group: CacheGroup) -> bool:
        """Return whether a group's blocks inside blocks of the tree cannot be matched."""
        return group.size < self.block_size and self.is_fine and self.scheme is None

    def doubt_reasons(self) -> tuple[str, ...]:
        """Return reasons why the reusable prefix may be too long or too short; empty if none."""
        reasons = [] if self.doubt is None else [self.doubt]
        if self.differs_ahead:
            reasons.append(
                f"names cover {self.lookahead} tokens behind a block, those of other ranks in the "
                "scope another number"
            )
        shows_salts = self.dense is not None or self.scheme is not None or not self.facts.salted
        if not shows_salts and self.may_be_fine:
            reasons.append("events of states alone do not show salts")
        return tuple(reasons)

    def bound_reasons(self) -> tuple[str, ...]:
        """Return reasons why the reusable prefix is an upper bound; empty if exact."""
        reasons = self._rank_reasons()
        for group in self:
            reasons += self._group_reasons(group) or self._size_reasons(group)
        return tuple(reasons)

    def _lacks_groups(self) -> bool:
        """Return whether groups that are known to publish events have not done so yet."""
        facts, numbers = self.facts, self.groups.keys()
        if not numbers:
            return False
        if facts.chunk and not any(group.kind in CHUNKED_KINDS for group in self):
            return True
        if facts.eagle_drop and not numbers >= set(facts.eagle_groups or ()):
            return True
        if facts.groups is not None:
            return len(numbers) < facts.groups
        # Numbers beyond the limit of groups are no counts, but for example TensorRT-LLM's windows.
        return len(numbers) <= max(numbers) < GROUPS_MAX

    def _rank_reasons(self) -> list[str]:
        reasons = []
        if self.is_incomplete and not self.groups:
            reasons.append("a dump does not tell the cache groups, and no event has done so yet")
        if self._lacks_groups():
            reasons.append("not every cache group has published blocks so far")
        if self.facts.certainty == "at_most":
            reasons.append("the registration says that events do not show all that limits a hit")
        if self.facts.may_drop and self.lookahead == 0:
            reasons.append(
                "the engine speculates and its events have no lookahead, so it may drop a block: "
                "give kv_cache.eagle_drop"
            )
        if self._has_older_drop:
            reasons.append(
                "events are arrays, as of older engines, whose drop of several groups' blocks is "
                "not followed"
            )
        if self.ignores_lookahead and self.lookahead:
            reasons.append("names cover tokens behind a block: register `is_eagle`")
        if self.overflowed:
            reasons.append("more groups or unplaced blocks than the index keeps")
        return reasons

    def _size_reasons(self, group: CacheGroup) -> list[str]:
        """Return reasons why the sizes of a group's blocks exclude the group from the rule."""
        position = self.unit if self.is_fine else self.block_size
        if group.tier == 0 or self._lane(group, position).kind != kinds.UNKNOWN:
            return []
        text = f"group {group.number} ({group.kind})"
        return [f"{text}: blocks of {group.size} tokens do not fit blocks of {self.block_size}"]

    def _group_reasons(self, group: CacheGroup) -> list[str]:
        text = f"group {group.number} ({group.kind})"
        if group.kind == NARROW_KIND:
            return [f"group {group.number}: how hits use its window of {group.window} is unknown"]
        if group.tier is None:
            return [f"{text} has no lane"]
        if self.is_incomplete and group.tier != 0:
            return [f"{text} may have blocks from before, which the recovered dump does not show"]
        if group.number in self.unknown_lanes:
            return [f"{text} has blocks that no event places"]
        if group.kind in CHUNKED_KINDS and not self.facts.chunk:
            return [f"{text}: the size of a chunk is unknown, give kv_cache.chunk"]
        if not group.is_sized and len(self.groups) > 1:
            return [f"{text} has published ends inside blocks only, so its block size is unknown"]
        if self.has_hidden_parts(group):
            return [f"{text} ends inside blocks, and the engine's names are unknown"]
        if group.kind in WINDOW_KINDS:
            if not group.window:
                return [f"{text}: the size of the window is unknown"]
            if self._drops(group) and group.size < self.block_size:
                return [f"{text} drops its last match inside a block"]
        elif not group.ends_inside_blocks and group.kind not in CHUNKED_KINDS:
            return [f"{text}: the kind is unknown"]
        return []
