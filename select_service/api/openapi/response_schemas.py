"""Schemas of responses that are written without structs, for the OpenAPI document only.

Nothing is encoded with these: /dump streams bytes and /config encodes a table.  The schemas state
the guarantees to clients, and tests compare real responses with them.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from select_service.api.limit_usage import LimitView
from select_service.schemas.common import U32, U64
from select_service.schemas.inspection import LogLevelView
from select_service.schemas.policies import PolicyRule


class SettingView(Struct, kw_only=True):
    """Value of a setting and its origin."""

    value: Any
    """Effective value, in the type of the setting; null: not set."""
    origin: str
    """`command line`, `environment` with the name of the variable, or `default`."""
    flag: str | UnsetType = UNSET
    """Command line flag of the setting; absent if there is none."""
    variable: str
    """Environment variable of the setting."""


class ConfigView(Struct, kw_only=True):
    """Effective configuration of the process."""

    version: str
    """Version of the service."""
    settings: dict[str, SettingView]
    """Settings by name."""
    log_level: LogLevelView
    """Log level, adjustable by PUT /log_level."""
    policy_rules: list[PolicyRule]
    """Rules set by PUT /policy; where no rule matches, the setting `policy` applies."""
    unknown_variables: dict[str, str | None]
    """Environment variables that resemble settings, with the most similar setting."""
    limits: dict[str, LimitView]
    """Limits shared by all callers, by name: see docs/guides/security.md."""


class DumpBlock(Struct, kw_only=True):
    """Block of a run."""

    block_hash: U64
    """Block id of the engine."""
    tokens_hash: U64
    """Hash of the block's tokens."""
    mm_extra_info: None
    """Always null. Field of Dynamo."""
    copies: int | UnsetType = UNSET
    """Number of announcements by the rank, if more than one."""


class DumpStore(Struct, kw_only=True):
    """Run of consecutive blocks."""

    parent_hash: U64 | None
    """Engine's id of the block before the run; null: the run begins a prompt."""
    start_position: None
    """Always null. Field of Dynamo."""
    blocks: list[DumpBlock]
    """Blocks of the run, each the parent of the next."""


class DumpData(Struct, kw_only=True):
    """Payload of the event; dumps contain only stores."""

    stored: DumpStore
    """Blocks held by the rank."""


class DumpEventBody(Struct, kw_only=True):
    """Store event of a rank."""

    event_id: U64
    """Number of the event in the dump, from 0."""
    data: DumpData
    """Payload of the event."""
    dp_rank: U32
    """Data-parallel rank of the worker."""


class DumpEvent(Struct, kw_only=True):
    """Run of blocks held by a rank in a tier."""

    worker_id: U64
    """Id of the worker."""
    storage_tier: Literal["device", "host_pinned", "disk", "external"]
    """Storage tier of the blocks."""
    residency_domain: Literal["worker"]
    """Always `worker`: the blocks are in the cache of this worker."""
    event: DumpEventBody
    """KV event that would announce the blocks."""


class PartitionDumpView(Struct, kw_only=True):
    """Index of a partition, with parents before their children."""

    block_size: U32
    """Tokens in a block."""
    events: list[DumpEvent]
    """Events that would rebuild the index."""
    watermarks: dict[str, U64] | UnsetType = UNSET
    """Sequence number of the last batch in the dump, by `worker_id:dp_rank`."""
    digests: dict[str, U64] | UnsetType = UNSET
    """XXH3-64 of that batch, by `worker_id:dp_rank`; identifies the engine after a restart."""
    partial_batches: dict[str, U64] | UnsetType = UNSET
    """Number of events of the next batch also in the dump, by `worker_id:dp_rank`."""
