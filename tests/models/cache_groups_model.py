"""Naive twin of the reusable prefix: groups with bags of prefixes, and the rule tried at every end.

A prefix is a tuple: the tokens up to the end of a block, and the tokens behind that end which the
content covers. `reusable_tokens` tries each end of the prompt, the longest first, and checks the
rule of each group there. The twin uses no positions and no bounds.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

DENSE, WINDOW, STATE, CHUNKED = (
    "full_attention",
    "sliding_window",
    "mamba",
    "chunked_local_attention",
)
FINE_KINDS = (DENSE, STATE)
"""Kinds of groups where hits may end inside a block."""


class GroupModel(NamedTuple):
    """Layers with one block table.

    size: tokens per block
    length: tokens of a window or chunk
    """

    number: int
    kind: str
    size: int
    length: int = 0


@dataclass
class CacheGroupsModel:
    """Engine cache of several groups.

    unit: tokens by which the engine names prefixes
    """

    groups: list[GroupModel]
    unit: int
    ahead: int = 0
    drops: bool = False
    drafts: tuple[int, ...] | None = None
    replay: int = 0
    held: dict[int, Counter] = field(default_factory=dict)

    def prefix(self, prompt, end):
        """Return the prefix that ends at `end`, or None if the prompt is too short for that."""
        if end + self.ahead > len(prompt):
            return None
        return (*prompt[:end], "|", *prompt[end : end + self.ahead])

    def store(self, number, prefix):
        self.held.setdefault(number, Counter())[prefix] += 1

    def remove(self, number, prefix):
        copies = self.held[number]
        copies[prefix] -= 1
        if not copies[prefix]:
            del copies[prefix]

    def clear(self):
        self.held.clear()

    def holdings(self):
        """Return (number, prefix) of every held prefix, in an order independent of history."""
        held = ((number, p) for number, copies in self.held.items() for p in copies)
        return sorted(held, key=repr)

    def reusable_tokens(self, prompt):
        ends = [b for b in range(1, len(prompt)) if b % self.alignment == 0]
        good = [b for b in ends if all(self._is_good(group, prompt, b) for group in self.groups)]
        longest = max(good, default=0)
        return longest if longest > self.replay else 0

    @property
    def is_fine(self):
        """Whether hits end at units, inside blocks too."""
        states = [group for group in self.groups if group.kind == STATE]
        others = [group for group in self.groups if group.kind not in FINE_KINDS]
        return (
            len(self.groups) > 1
            and any(group.size > self.unit for group in states)
            and all(group.size == self.unit for group in others)
        )

    @property
    def alignment(self):
        return self.unit if self.is_fine else math.lcm(*(group.size for group in self.groups))

    def _drops_last(self, group):
        if not self.drops or self.drafts is None:
            return self.drops
        return group.number in self.drafts

    def _holds(self, group, prompt, end):
        prefix = self.prefix(prompt, end)
        return prefix is not None and self.held.get(group.number, Counter())[prefix] > 0

    def _is_good(self, group, prompt, b):
        if group.kind == STATE:
            return self._holds(group, prompt, b)
        if group.kind == DENSE:
            return self._dense_reach(group, prompt) >= b + self._margin(group)
        if group.kind == WINDOW:
            return self._has_window(group, prompt, b)
        start = b // group.length * group.length
        return all(
            self._holds(group, prompt, end) for end in range(start + group.size, b + 1, group.size)
        )

    def _margin(self, group):
        """Return the tokens that must be held behind the end of a hit."""
        if not self._drops_last(group):
            return 0
        return self.unit if self.is_fine and group.kind in FINE_KINDS else group.size

    def _dense_reach(self, group, prompt):
        reach, size = 0, group.size
        while self._holds(group, prompt, reach + size):
            reach += size
        if self.is_fine:
            inside = range(reach + self.unit, reach + size, self.unit)
            reach = max([reach, *(end for end in inside if self._holds(group, prompt, end))])
        if len(self.groups) == 1 and reach > len(prompt) - 1:
            reach = (len(prompt) - 1) // size * size
        return reach

    def _has_window(self, group, prompt, b):
        size = group.size
        need = min(b // size, max(1, -(-(group.length - 1) // size)))
        before = all(self._holds(group, prompt, b - k * size) for k in range(need))
        margin = self._margin(group)
        if margin and len(self.groups) == 1 and b + margin > len(prompt) - 1:
            return False
        return b % size == 0 and before and (not margin or self._holds(group, prompt, b + margin))
