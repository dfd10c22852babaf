"""Cache group of a rank: layers of the same kind with a common block table."""

from dataclasses import dataclass

DENSE_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of attention for which all blocks of a prefix must be held.
Source: kv_cache_spec_kind of vLLM's KV events.
"""
DENSE_KIND = "full_attention"
UNKNOWN_KIND = "unknown"
"""Kind of a further group with events that show no kind."""
WINDOW_KINDS = frozenset({"sliding_window", "sliding_window_mla"})
NARROW_KIND = "narrow_window"
"""Kind of a group with less than the widest window, of an engine that sends no kinds.
Blocks of such groups are not followed, since the engine's rule of reuse is unknown.
"""
STATE_KINDS = frozenset({"mamba"})
CHUNKED_KINDS = frozenset({"chunked_local_attention"})


@dataclass(slots=True)
class CacheGroup:
    """Group of layers with a common block table.

    size: tokens per block, the largest that was published
    tier: 0 for the dense group in the tree, else a lane; None without a lane
    is_sized: False while all events may have been ends inside larger blocks
    """

    number: int
    kind: str
    window: int | None
    size: int
    tier: int | None
    is_sized: bool = True

    @property
    def is_dense(self) -> bool:
        return self.kind in DENSE_KINDS

    @property
    def ends_inside_blocks(self) -> bool:
        """True for kinds with hits that may end inside a block."""
        return self.kind in DENSE_KINDS or self.kind in STATE_KINDS
