"""Cost of moving a request: transfer of its KV cache, or a new prefill.

Both costs are linear in tokens. Fixed costs, blocks already at the target and the target's waiting
prefill decide between the methods.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class MoveMethod(StrEnum):
    """Way in which a request continues elsewhere; ABORT means that the request ends."""

    TRANSFER = "transfer"
    REPREFILL = "reprefill"
    ABORT = "abort"


class WorkerLink(NamedTuple):
    """Link between two workers.

    bandwidth: bytes/s of a shard
    """

    bandwidth: float
    setup_ms: float


LINKS = {
    "nvlink": WorkerLink(900e9, 1.0),
    "nvswitch": WorkerLink(600e9, 1.0),
    "infiniband": WorkerLink(50e9, 3.0),
    "pcie": WorkerLink(28e9, 2.0),
    "unknown": WorkerLink(10e9, 10.0),
}
"""Links by the closest topology level that two workers share (`find_link_between`)."""
TRANSFER_MS_MAX = 500.0
"""Maximum duration of a transfer, ms; longer transfers are not worth their risk."""
PREFILL_TOKENS_PER_S = 5000.0
"""Default prefill rate of a rank without samples, tokens/s."""


class MigrationLimits(NamedTuple):
    """Settings of migrations.

    transfer_ms_max: longest transfer of a cache, ms
    links: links by name, as in LINKS
    """

    transfer_ms_max: float = TRANSFER_MS_MAX
    links: Mapping[str, WorkerLink] = LINKS


class TopologyPosition(NamedTuple):
    """Topology position of a worker; None means unknown and matches nothing."""

    kv_transfer_domain: str | None = None
    rack: str | None = None
    fabric: str | None = None
    host: str | None = None


def find_link_between(
    one: TopologyPosition, other: TopologyPosition, links: Mapping[str, WorkerLink] = LINKS
) -> WorkerLink:
    """Return the fastest link that both positions share. links: by name, as in LINKS"""
    for name, ours, theirs in zip(
        ("nvlink", "nvswitch", "infiniband", "pcie"), one, other, strict=True
    ):
        # Two unknown positions are no common one.
        if ours is not None and ours == theirs:
            return links[name]
    return links["unknown"]


class CacheLayout(NamedTuple):
    """KV cache layout of a model, in blocks of `block_size` tokens over `tp` shards."""

    block_size: int
    layers: int
    kv_heads: int
    head_dim: int
    dtype_bytes: int
    tp: int = 1

    @property
    def block_bytes_per_shard(self) -> int:
        """Bytes of keys and values of a block; heads that do not divide evenly are rounded up."""
        return self._block_bytes(-(-self.kv_heads // self.tp))

    @property
    def block_bytes(self) -> int:
        """Bytes of a block over all shards."""
        return self._block_bytes(self.kv_heads)

    def _block_bytes(self, heads: int) -> int:
        return self.block_size * 2 * self.layers * heads * self.head_dim * self.dtype_bytes


class MoveTerms(NamedTuple):
    """Conditions of a move that do not depend on the target.

    block_bytes: bytes per shard; None means an unknown layout, which excludes transfers
    readable: whether the cache of the source is correct and its process responds
    """

    block_size: int
    block_bytes: int | None
    readable: bool
    transfer_ms_max: float = TRANSFER_MS_MAX


class MoveCost(NamedTuple):
    """Cost of a move.

    transfer_ms: None if a transfer is impossible
    bytes_per_shard: bytes that a transfer would carry
    """

    blocks: int
    missing_blocks: int
    bytes_per_shard: int
    transfer_ms: float | None
    reprefill_ms: float
    method: MoveMethod
    ms: float


def move_cost(
    terms: MoveTerms,
    tokens: int,
    overlap_blocks: int,
    link: WorkerLink,
    waiting: float,
    rate: float,
) -> MoveCost:
    """Return the cost of moving a request to a target.

    overlap_blocks: blocks of the request already at the target
    waiting: waiting prefill at the target, tokens
    rate: prefill rate of the target, tokens/s
    """
    blocks = -(-tokens // terms.block_size)
    missing = max(0, blocks - overlap_blocks)
    size = missing * (terms.block_bytes or 0)
    new_tokens = max(0, tokens - overlap_blocks * terms.block_size)
    reprefill_ms = (waiting + new_tokens) / rate * 1000.0
    transfer_ms = None
    if terms.readable and terms.block_bytes is not None:
        transfer_ms = link.setup_ms + size / link.bandwidth * 1000.0 if missing else 0.0
    method, ms = MoveMethod.REPREFILL, reprefill_ms
    if transfer_ms is not None and transfer_ms <= terms.transfer_ms_max:
        # At equal cost the prefill wins, as it does not depend on the source.
        method, ms = min((method, ms), (MoveMethod.TRANSFER, transfer_ms), key=lambda way: way[1])
    return MoveCost(blocks, missing, size, transfer_ms, reprefill_ms, method, ms)
