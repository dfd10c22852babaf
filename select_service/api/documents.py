"""Shapes of answers that are written without a struct of their own, for the OpenAPI document.

Nothing is encoded with these: /dump streams its bytes and /config shows a table.  They say what a
client may rely on, and tests hold the real answers against them.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from select_service.bodies.common import U32, U64


class SettingView(Struct, kw_only=True):
    """The value of one setting and where it came from: a flag, a variable or the default."""

    value: Any
    origin: str


class ConfigView(Struct, kw_only=True):
    """The effective configuration of the process."""

    version: str
    settings: dict[str, SettingView]


class DumpBlock(Struct, kw_only=True):
    """`block_hash` is the engine's id of the block, `tokens_hash` the hash of its content.

    `copies` says how often the rank announced the block, when that is more than once.
    """

    block_hash: U64
    tokens_hash: U64
    mm_extra_info: None
    copies: int | UnsetType = UNSET


class DumpStore(Struct, kw_only=True):
    """A run of blocks behind `parent_hash` (an engine hash), or from the root when it is null."""

    parent_hash: U64 | None
    start_position: None
    blocks: list[DumpBlock]


class DumpData(Struct, kw_only=True):
    """What happened; a dump only tells of stores."""

    stored: DumpStore


class DumpEventBody(Struct, kw_only=True):
    """One store of one rank."""

    event_id: U64
    data: DumpData
    dp_rank: U32


class DumpEvent(Struct, kw_only=True):
    """One run of blocks that one rank holds in one tier."""

    worker_id: U64
    storage_tier: Literal["device", "host_pinned", "disk", "external"]
    event: DumpEventBody


class PartitionDumpView(Struct, kw_only=True):
    """The index of one partition: parents before their children."""

    block_size: U32
    events: list[DumpEvent]
    watermarks: dict[str, U64] | UnsetType = UNSET
    partial_batches: dict[str, U64] | UnsetType = UNSET
