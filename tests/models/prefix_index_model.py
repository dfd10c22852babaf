"""Naive twins of the prefix index: dictionaries and loops, no tree, no bits.

`EdgeModel` is the definition of a match for engines that name each block by one hash: per (slot,
tier) a bag of edges (parent hash, content) -> hash, walked with a frontier of hashes; tiers
continue with the frontier at which the tier before stopped. The model has no places and no orphans.

`PlaceModel` adds the meaning of several hashes for one block: a hash names a place (the contents
from the root), and a block is held while any of its hashes is. The model applies the rules
separately and recomputes everything from them.
"""

from collections import Counter, defaultdict

N_TIERS = 4
LANES = 3
N_PLANES = N_TIERS + LANES
"""Number of tiers and of the lanes behind tiers; no match looks at the blocks in lanes."""
ROOT = None
Place = tuple[int, ...]


class EdgeModel:
    """Per (slot, tier): (parent hash, content) -> {hash: copies}."""

    def __init__(self) -> None:
        self.edges: dict[tuple[int, int], dict[tuple[int | None, int], Counter[int]]] = defaultdict(
            lambda: defaultdict(Counter)
        )

    def store(self, slot, tier, parent, blocks, names, counted) -> None:
        for local, name in zip(blocks, names, strict=True):
            held = self.edges[slot, tier][parent, local]
            held[name] = held[name] + 1 if counted else max(held[name], 1)
            parent = name

    def store_known(self, slot, tier, names, counted) -> None:
        for name in names:
            for (parent, local), held in self._edges_of(slot):
                if held[name] > 0:
                    self.store(slot, tier, parent, [local], [name], counted)
                    break

    def remove(self, slot, tier, names) -> None:
        for name in names:
            for held in self.edges[slot, tier].values():
                if held[name] > 0:
                    held[name] -= 1

    def clear(self, slot) -> None:
        for tier in range(N_PLANES):
            self.edges.pop((slot, tier), None)

    def match(self, slot, path) -> list[int]:
        frontier: set[int | None] = {ROOT}
        depth, row = 0, []
        for tier in range(N_TIERS):
            edges = self.edges.get((slot, tier), {})
            while depth < len(path):
                found = [edges.get((parent, path[depth]), Counter()) for parent in frontier]
                following = {name for held in found for name, copies in held.items() if copies > 0}
                if not following:
                    break
                frontier, depth = following, depth + 1
            row.append(depth)
        return row

    def _edges_of(self, slot):
        return [edge for tier in range(N_PLANES) for edge in list(self.edges[slot, tier].items())]


class PlaceModel:
    """Per slot: announcements (tier, hash) -> copies, where each hash is, and orphans."""

    def __init__(self) -> None:
        self.copies: dict[int, Counter[tuple[int, int]]] = defaultdict(Counter)
        self.place: dict[int, dict[tuple[int, int], Place]] = defaultdict(dict)
        self.orphans: dict[int, dict[tuple[int, int], tuple[int, int, int]]] = defaultdict(dict)

    def where(self, slot, tier, name) -> Place | None:
        """Return the place that the slot has under this name, preferring `tier`."""
        tiers = [tier, *range(N_PLANES)]
        places = (self.place[slot].get((t, name)) for t in tiers)
        return next((place for place in places if place is not None), None)

    def store(self, slot, tier, parent, blocks, names, counted) -> None:
        for local, name in zip(blocks, names, strict=True):
            above = () if parent is None else self.where(slot, tier, parent)
            known = self.where(slot, tier, name)
            if above is None and known is not None and known[-1] == local:
                above = known[:-1]
            if above is None:
                self._put_aside(slot, tier, name, parent, local, counted)
            else:
                aside = self.orphans[slot].get((tier, name))
                if aside is not None and aside[:2] == (parent, local):
                    self._put(slot, tier, name, (*above, local), aside[2], True)
                self._put(slot, tier, name, (*above, local), 1, counted)
            parent = name
        self._adopt(slot)

    def store_known(self, slot, tier, names, counted) -> None:
        for name in names:
            place = self.where(slot, tier, name)
            aside = [o for (_, n), o in sorted(self.orphans[slot].items()) if n == name]
            if place is not None:
                self._put(slot, tier, name, place, 1, counted)
            elif aside:
                parent, local, _ = aside[0]
                self._put_aside(slot, tier, name, parent, local, counted)

    def remove(self, slot, tier, names) -> None:
        for name in names:
            key = (tier, name)
            if key in self.place[slot]:
                self.copies[slot][key] -= 1
                if self.copies[slot][key] == 0:
                    del self.place[slot][key]
            elif key in self.orphans[slot]:
                parent, local, copies = self.orphans[slot].pop(key)
                if copies > 1:
                    self.orphans[slot][key] = (parent, local, copies - 1)

    def clear(self, slot) -> None:
        for state in (self.copies, self.place, self.orphans):
            state.pop(slot, None)

    def match(self, slot, path) -> list[int]:
        depth, row = 0, []
        for tier in range(N_TIERS):
            held = {place for (t, _), place in self.place[slot].items() if t == tier}
            while depth < len(path) and tuple(path[: depth + 1]) in held:
                depth += 1
            row.append(depth)
        return row

    def prefix_names(self, slot, path) -> list[set[int]]:
        """Return the hashes under which the slot holds each leading GPU block of a path."""
        held = defaultdict(set)
        for (tier, name), place in self.place[slot].items():
            if tier == 0:
                held[place].add(name)
        return [held[tuple(path[:n])] for n in range(1, self.match(slot, path)[0] + 1)]

    def blocks(self, slot) -> list[int]:
        """Return the number of held blocks per tier, matched or not."""
        held = {(tier, place) for (tier, _), place in self.place[slot].items()}
        return [sum(t == tier for t, _ in held) for tier in range(N_PLANES)]

    def places(self) -> set[Place]:
        """Return every prefix that must exist as a node."""
        held = {place for slot in self.place.values() for place in slot.values()}
        return {place[:n] for place in held for n in range(1, len(place) + 1)}

    def _put(self, slot, tier, name, place, copies, counted) -> None:
        key = (tier, name)
        self.orphans[slot].pop(key, None)
        if self.place[slot].get(key) != place:
            self.copies[slot][key] = 0
        before = self.copies[slot][key]
        self.place[slot][key] = place
        self.copies[slot][key] = before + copies if counted else max(before, 1)

    def _put_aside(self, slot, tier, name, parent, local, counted) -> None:
        key = (tier, name)
        self.place[slot].pop(key, None)
        was = self.orphans[slot].pop(key, None)
        copies = was[2] + counted if was and was[:2] == (parent, local) else 1
        self.orphans[slot][key] = (parent, local, copies)

    def _adopt(self, slot) -> None:
        moved = True
        while moved:
            moved = False
            for (tier, name), (parent, local, copies) in list(self.orphans[slot].items()):
                above = self.where(slot, 0, parent)
                if above is not None:
                    self._put(slot, tier, name, (*above, local), copies, True)
                    moved = True
