"""Shapes of answers that are written without a struct of their own, for the OpenAPI document.

Nothing is encoded with these: /dump streams its bytes and /config shows a table.  They say what a
client may rely on, and tests hold the real answers against them.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from select_service.api.limit_views import LimitView
from select_service.bodies.common import U32, U64
from select_service.bodies.inspection import LogLevelView
from select_service.bodies.policies import PolicyRule


class SettingView(Struct, kw_only=True):
    """The value of one setting and where it came from."""

    value: Any
    """As it counts, in the type of the setting; null: not set."""
    origin: str
    """`command line`, `environment` with the name of the variable, or `default`."""
    flag: str | UnsetType = UNSET
    """What sets it on the command line; absent when nothing does."""
    variable: str
    """The environment variable that sets it."""


class ConfigView(Struct, kw_only=True):
    """The effective configuration of the process."""

    version: str
    """Version of the service."""
    settings: dict[str, SettingView]
    """By name of the setting."""
    log_level: LogLevelView
    """PUT /log_level changes what counts now."""
    policy_rules: list[PolicyRule]
    """What PUT /policy has set; where no rule counts it is `policy` of the settings."""
    unknown_variables: dict[str, str | None]
    """Environment variables that look like settings and are none, with the most similar setting."""
    limits: dict[str, LimitView]
    """What all callers share, by name: see docs/security.md."""


class DumpBlock(Struct, kw_only=True):
    """One block of a run."""

    block_hash: U64
    """The engine's id of the block."""
    tokens_hash: U64
    """Hash of its content."""
    mm_extra_info: None
    """Always null. Field of the reference."""
    copies: int | UnsetType = UNSET
    """How often the rank announced the block, when that is more than once."""


class DumpStore(Struct, kw_only=True):
    """A run of blocks."""

    parent_hash: U64 | None
    """Engine's id of the block before the first one; null: the run begins a prompt."""
    start_position: None
    """Always null. Field of the reference."""
    blocks: list[DumpBlock]
    """Each the parent of the next."""


class DumpData(Struct, kw_only=True):
    """What happened; a dump only tells of stores."""

    stored: DumpStore
    """The blocks that the rank holds."""


class DumpEventBody(Struct, kw_only=True):
    """One store of one rank."""

    event_id: U64
    """Counts the events of the dump, from 0."""
    data: DumpData
    """What happened."""
    dp_rank: U32
    """Data-parallel rank of the worker."""


class DumpEvent(Struct, kw_only=True):
    """One run of blocks that one rank holds in one tier."""

    worker_id: U64
    """Id of the worker."""
    storage_tier: Literal["device", "host_pinned", "disk", "external"]
    """Where the blocks lie."""
    event: DumpEventBody
    """The KV event that would announce them."""


class PartitionDumpView(Struct, kw_only=True):
    """The index of one partition: parents before their children."""

    block_size: U32
    """Tokens in a block."""
    events: list[DumpEvent]
    """What would rebuild the index."""
    watermarks: dict[str, U64] | UnsetType = UNSET
    """`worker_id:dp_rank` to the number of the last batch that is in the dump."""
    digests: dict[str, U64] | UnsetType = UNSET
    """`worker_id:dp_rank` to the XXH3-64 of that batch, by which its engine is known again."""
    partial_batches: dict[str, U64] | UnsetType = UNSET
    """`worker_id:dp_rank` to how many events of the next batch are in it too."""
