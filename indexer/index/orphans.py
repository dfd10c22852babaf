"""Orphans: blocks with a parent unannounced in the slot, set aside until the announcement.

Engines may announce a child before the parent, or announce a removed parent again. Such a block has
no place in the tree yet and is stored as an edge (parent, content) -> engine hash of the slot. This
is the cold path: plain dictionaries, bounded by `orphans_max`.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

from indexer.index.header_kernels import LIVE_TIERS

ORPHAN_BYTES = 700
"""Memory of an orphan with all containers; measured, rounded up."""


class Orphan(NamedTuple):
    """Block of a slot and tier, announced `copies` times."""

    tier: int
    engine_hash: int
    parent: int
    local: int
    copies: int


class SlotOrphans:
    """Orphans of a slot."""

    def __init__(self) -> None:
        self.by_name: dict[tuple[int, int], Orphan] = {}  # (tier, engine hash)
        self.by_parent: dict[int, dict[tuple[int, int], None]] = {}

    def put_orphan(self, orphan: Orphan) -> None:
        name = (orphan.tier, orphan.engine_hash)
        self.by_name[name] = orphan
        self.by_parent.setdefault(orphan.parent, {})[name] = None

    def pop_orphan(self, name: tuple[int, int]) -> Orphan:
        orphan = self.by_name.pop(name)
        siblings = self.by_parent[orphan.parent]
        del siblings[name]
        if not siblings:
            del self.by_parent[orphan.parent]
        return orphan

    def free_entries(self) -> None:
        """Free the memory entry by entry, so that other threads run in between."""
        while self.by_name:
            self.by_name.popitem()
        while self.by_parent:
            self.by_parent.popitem()


_NONE = SlotOrphans()


class OrphanStore:
    """Orphans of all slots of an index. `slot in orphans` is true if the slot has any."""

    def __init__(self, orphans_max: int, on_change: Callable[[int, bool], None]) -> None:
        """on_change: callback for slots with a first orphan (True) or without the last (False)"""
        self.dropped = 0
        self._on_change = on_change
        self._orphans_max = orphans_max
        self._count = 0
        self._slots: dict[int, SlotOrphans] = {}

    def __len__(self) -> int:
        return self._count

    def __contains__(self, slot: int) -> bool:
        return slot in self._slots

    def add(self, slot: int, orphan: Orphan, *, counted: int) -> bool:
        """Store an orphan, or count `counted` more copies; a later place replaces an earlier place.

        Returns False, without effect, if there are too many.
        """
        mine = self._slots.get(slot) or SlotOrphans()
        name = (orphan.tier, orphan.engine_hash)
        known = mine.by_name.get(name)
        # A known orphan replaces itself, so the limit does not apply.
        if known is None and self._count >= self._orphans_max:
            return False
        if known is not None:
            mine.pop_orphan(name)
            if (known.parent, known.local) == (orphan.parent, orphan.local):
                orphan = known._replace(copies=known.copies + counted)
        mine.put_orphan(orphan)
        self._count += known is None
        if slot not in self._slots:
            self._slots[slot] = mine
            self._on_change(slot, True)
        return True

    def remove(self, slot: int, tier: int, engine_hash: int, *, every_copy: bool) -> bool:
        """Undo an announcement, or every copy. Return whether there was any."""
        mine = self._slots[slot] if slot in self._slots else SlotOrphans()
        orphan = mine.by_name.get((tier, engine_hash))
        if orphan is None:
            return False
        mine.pop_orphan((tier, engine_hash))
        if orphan.copies > 1 and not every_copy:
            mine.put_orphan(orphan._replace(copies=orphan.copies - 1))
        else:
            self._forget(slot, 1)
        return True

    def find_in_tier(self, slot: int, tier: int, engine_hash: int) -> Orphan | None:
        """Return the slot's orphan of this name in this tier, or None."""
        mine = self._slots.get(slot)
        return None if mine is None else mine.by_name.get((tier, engine_hash))

    def find_in_any_tier(self, slot: int, engine_hash: int) -> Orphan | None:
        """Return the slot's orphan of this name in any tier or lane, or None."""
        mine = self._slots.get(slot)
        if mine is None:
            return None
        names = ((tier, engine_hash) for tier in range(LIVE_TIERS))
        return next((mine.by_name[name] for name in names if name in mine.by_name), None)

    def missing_parents(self, slot: int, engine_hashes: Iterable[int]) -> list[int]:
        """Return the names that are missing parents of the slot's orphans."""
        mine = self._slots.get(slot)
        return [] if mine is None else [name for name in engine_hashes if name in mine.by_parent]

    def take_children(self, slot: int, parent: int, at_most: int) -> list[Orphan]:
        """Remove and return at most `at_most` of the slot's orphans with this missing parent."""
        mine = self._slots.get(slot)
        if mine is None:
            return []
        names = list(islice(mine.by_parent.get(parent, ()), at_most))
        children = [mine.pop_orphan(name) for name in names]
        self._forget(slot, len(children))
        return children

    def drop_slot(self, slot: int) -> SlotOrphans:
        """Forget all orphans of the slot; call their `free_entries` after unlocking the index."""
        mine = self._slots.pop(slot, None)
        if mine is None:
            return _NONE
        self._on_change(slot, False)
        self._count -= len(mine.by_name)
        return mine

    def _forget(self, slot: int, gone: int) -> None:
        self._count -= gone
        if not self._slots[slot].by_name:
            del self._slots[slot]
            self._on_change(slot, False)

    def check_invariants(self) -> None:
        """Recount the orphans and the links. O(orphans), for tests."""
        assert self._count == sum(len(mine.by_name) for mine in self._slots.values())
        assert self._count <= self._orphans_max
        for mine in self._slots.values():
            assert mine.by_name
            waiting = {n: p for p, names in mine.by_parent.items() for n in names}
            assert waiting == {n: orphan.parent for n, orphan in mine.by_name.items()}
            assert all(mine.by_parent.values())

    def by_slot(self) -> list[tuple[int, list[Orphan]]]:
        """Return the orphans of each slot that has any."""
        return [(slot, list(mine.by_name.values())) for slot, mine in self._slots.items()]
