"""What it costs to move a request: to carry its cache over, or to compute it again.

Both are linear in tokens; what decides are fixed costs, what the target already has, and what it
has to do before.
"""

from enum import StrEnum
from typing import NamedTuple


class Method(StrEnum):
    """How a request goes on elsewhere; ABORT: it does not."""

    TRANSFER = "transfer"
    REPREFILL = "reprefill"
    ABORT = "abort"


class Link(NamedTuple):
    """bandwidth: bytes/s of one shard"""

    bandwidth: float
    setup_ms: float


LINKS = {
    "nvlink": Link(900e9, 1.0),
    "nvswitch": Link(600e9, 1.0),
    "infiniband": Link(50e9, 3.0),
    "pcie": Link(28e9, 2.0),
    "unknown": Link(10e9, 10.0),
}
"""By what two workers have in common (`link_between`)."""
TRANSFER_MS_MAX = 500.0
"""A transfer that takes longer is not worth its risk."""
PREFILL_TOKENS_PER_S = 5000.0
"""Of a rank of which nothing is known."""


class Place(NamedTuple):
    """Where a worker stands; None: unknown, and nothing is in common with it."""

    kv_transfer_domain: str | None = None
    rack: str | None = None
    fabric: str | None = None
    host: str | None = None


def link_between(one: Place, other: Place) -> Link:
    """The fastest that both are known to be on."""
    for name, ours, theirs in zip(
        ("nvlink", "nvswitch", "infiniband", "pcie"), one, other, strict=True
    ):
        if ours is not None and ours == theirs:
            return LINKS[name]
    return LINKS["unknown"]


class KvLayout(NamedTuple):
    """Of the cache of a model, in blocks of `block_size` tokens, over `tp` shards."""

    block_size: int
    layers: int
    kv_heads: int
    head_dim: int
    dtype_bytes: int
    tp: int = 1

    @property
    def block_bytes_per_shard(self) -> int:
        """Keys and values of one block; heads that do not divide evenly are rounded up."""
        return self._block_bytes(-(-self.kv_heads // self.tp))

    @property
    def block_bytes(self) -> int:
        """Of all shards together."""
        return self._block_bytes(self.kv_heads)

    def _block_bytes(self, heads: int) -> int:
        return self.block_size * 2 * self.layers * heads * self.head_dim * self.dtype_bytes


class MoveTerms(NamedTuple):
    """What a move depends on besides its target.

    block_bytes: per shard; None: the layout is unknown, and nothing is ever carried over
    readable:    is the cache of the source right, and does somebody answer there?
    """

    block_size: int
    block_bytes: int | None
    readable: bool
    transfer_ms_max: float = TRANSFER_MS_MAX


class MoveCost(NamedTuple):
    """transfer_ms: None if it is not possible;  bytes_per_shard: that would be carried over"""

    blocks: int
    missing_blocks: int
    bytes_per_shard: int
    transfer_ms: float | None
    reprefill_ms: float
    method: Method
    ms: float


def move_cost(
    terms: MoveTerms, tokens: int, overlap_blocks: int, link: Link, waiting: float, rate: float
) -> MoveCost:
    """To one target.

    overlap_blocks: of the request, that the target has already
    waiting: prefill tokens before it there;  rate: of its prefill, in tokens/s
    """
    blocks = -(-tokens // terms.block_size)
    missing = max(0, blocks - overlap_blocks)
    size = missing * (terms.block_bytes or 0)
    new_tokens = max(0, tokens - overlap_blocks * terms.block_size)
    reprefill_ms = (waiting + new_tokens) / rate * 1000.0
    transfer_ms = None
    if terms.readable and terms.block_bytes is not None:
        transfer_ms = link.setup_ms + size / link.bandwidth * 1000.0 if missing else 0.0
    method, ms = Method.REPREFILL, reprefill_ms
    if transfer_ms is not None and transfer_ms <= terms.transfer_ms_max:
        method, ms = min((method, ms), (Method.TRANSFER, transfer_ms), key=lambda way: way[1])
    return MoveCost(blocks, missing, size, transfer_ms, reprefill_ms, method, ms)
