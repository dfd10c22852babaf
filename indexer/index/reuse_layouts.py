"""Layouts of ranks with several cache groups: what `reuse_kernels` reads, kept per slot."""

from typing import NamedTuple

import numpy as np

from indexer.hashing.engine_names import NameScheme
from indexer.index import header_kernels as state
from indexer.index import reuse_layout as fields
from indexer.index.index_memory import IndexMemory
from indexer.index.reuse_walk_kernels import RUN_FIELDS

LAYOUTS_MAX = 64
"""Limit of different layouts in a partition, far above the few layouts of a real model."""
RUNS_MAX = 1 << 13
"""Limit of holder sets along a prompt, also inside blocks; with more a match is a bound."""


class Lane(NamedTuple):
    """Cache group beside the dense group; `reuse_layout` has the meaning of the numbers."""

    tier: int
    kind: int
    size: int = 1
    need: int = 0
    drop: int = 0
    parts: int = 0
    ahead: int = 0


class RankLayout(NamedTuple):
    """Cache groups of a rank; `reuse_layout` has the meaning of the numbers."""

    align: int = 1
    units: int = 1
    drop: int = 0
    has_dense: bool = True
    is_single: bool = False
    replay: int = 0
    bound: int = fields.NEVER
    ends_tier: int = 0
    ahead: int = 0
    scheme: NameScheme | None = None
    lanes: tuple[Lane, ...] = ()


class ReuseLayouts:
    """Layouts by slot.  Changed only with the index locked."""

    def __init__(self, memory: IndexMemory) -> None:
        self._memory = memory
        self._slots: dict[int, RankLayout] = {}
        self.name_scheme: NameScheme | None = None
        """Scheme of the ranks that are matched by names; None without any."""

    def layout_of(self, slot: int) -> RankLayout | None:
        """Return the layout of a slot; None for a slot with only a dense group."""
        return self._slots.get(slot)

    def set_layout(self, slot: int, layout: RankLayout | None, block_size: int = 0) -> bool:
        """Set the layout of a slot.  Return False, without effect, beyond LAYOUTS_MAX.

        block_size: tokens per block of the tree, equal for all slots
        """
        if layout == self._slots.get(slot):
            return True
        block_size = block_size or self._memory.value(state.REUSE_BLOCK)
        others = {held for each, held in self._slots.items() if each != slot}
        if layout is not None and layout not in others and len(others) == LAYOUTS_MAX:
            return False
        if layout is None:
            del self._slots[slot]
        else:
            self._slots[slot] = layout
        self._rewrite(block_size)
        return True

    def _rewrite(self, block_size: int) -> None:
        """Write the table anew: layouts change a few times in the life of an engine."""
        memory, header = self._memory, self._memory.header
        if not self._slots:
            memory.drop_reuse_columns()
            header[state.UNITS_MAX], self.name_scheme = 0, None
            return
        layouts = sorted(set(self._slots.values()), key=repr)
        schemes = [each.scheme for each in layouts if each.scheme is not None]
        self.name_scheme = schemes[0] if schemes else None
        number_of = {layout: number for number, layout in enumerate(layouts, 1)}
        table = np.zeros((len(layouts), fields.LAYOUT_LENGTH), np.int64)
        for row, layout in zip(table, layouts, strict=True):
            has_parts = any(lane.parts for lane in layout.lanes)
            *fixed, ahead, scheme, lanes = layout
            is_by_name = scheme is not None and scheme == self.name_scheme
            if scheme is not None and not is_by_name:
                # A prompt's names are computed once, by a single scheme: other ranks are bounds.
                fixed[fields.R_BOUND] = max(fixed[fields.R_BOUND], fields.ALWAYS)
                lanes = tuple(lane._replace(kind=fields.UNKNOWN) for lane in lanes)
            row[: fields.LAYOUT_FIELDS] = (*fixed, is_by_name, has_parts, ahead, len(lanes))
            flat = [number for lane in lanes for number in lane]
            row[fields.LAYOUT_FIELDS : fields.LAYOUT_FIELDS + len(flat)] = flat
        n_slots = 64 * memory.value(state.WORDS)
        numbers = np.zeros(n_slots, np.int64)
        for slot, layout in self._slots.items():
            numbers[slot] = number_of[layout]
        memory.install_reuse_columns(table.ravel(), numbers, RUNS_MAX * RUN_FIELDS)
        header[state.REUSE_BLOCK] = block_size
        header[state.UNITS_MAX] = max((each.units for each in layouts if each.units > 1), default=0)
