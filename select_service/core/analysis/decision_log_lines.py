"""Lines of the decision log, one JSON object each, written by a service and read by the replay."""

from typing import Literal

from msgspec import Struct

HASH_TOKENS = 64
"""Minimum number of tokens covered by a hash; a hash covers as many blocks as needed for this."""
HASHES_MAX = 2048
"""Maximum number of hashes of a prompt, from the beginning; the log lacks the rest."""
HASH_DIGITS = 16


class LogHead(Struct, tag_field="kind", tag="log", forbid_unknown_fields=True):
    """First line of a file, and of every run of a service that appends to the file."""

    format: Literal["select-service decisions"] = "select-service decisions"
    version: Literal[1] = 1


class LoggedRank(Struct, forbid_unknown_fields=True):
    """Rank of a fleet; `null` means that the worker declared no value."""

    worker_id: int
    dp_rank: int
    total_kv_blocks: int | None
    max_num_batched_tokens: int | None


class LoggedFleet(Struct, tag_field="kind", tag="fleet", forbid_unknown_fields=True):
    """Ranks of a model and tenant, valid until the next such line for both."""

    model_name: str
    tenant_id: str
    block_size: int
    ranks: list[LoggedRank]


class LoggedDecision(Struct, tag_field="kind", tag="decision", forbid_unknown_fields=True):
    """One decision, written when its reservation has ended."""

    decision: int
    """Number of the decision since the start of the service."""
    at: float
    """Time of the decision, Unix seconds."""
    model_name: str
    tenant_id: str
    policy: str
    isl_tokens: int
    block_size: int
    hash_blocks: int
    """Blocks covered by each hash."""
    hashes: str
    """Sequence hashes of 16 hexadecimal digits; equal hashes mean equal prompts up to this
    block.
    """
    worker_id: int | None
    """Worker of the chosen rank; `null` means that the rank has left."""
    dp_rank: int | None
    candidates: int
    waited_s: float
    """Time in the queue before the decision, seconds."""
    reserved: bool
    """Whether load was booked; otherwise there are no hashes."""
    output_tokens: int | None = None
    """Reported output tokens, in whole blocks; `null` means that no block was reported."""


LogLine = LogHead | LoggedFleet | LoggedDecision


def blocks_of_hash(block_size: int) -> int:
    """Return the number of blocks covered by a hash of the log."""
    return -(-HASH_TOKENS // block_size)
