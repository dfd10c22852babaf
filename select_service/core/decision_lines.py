"""Lines of the decision log, JSON each: a service writes them, `select-service replay` reads."""

from typing import Literal

from msgspec import Struct

HASH_TOKENS = 64
"""A hash covers at least so many tokens: as many blocks as that takes."""
HASHES_MAX = 2048
"""Of a prompt, its first ones; what lies behind is not in the log."""
HASH_DIGITS = 16


class LogHead(Struct, tag_field="kind", tag="log", forbid_unknown_fields=True):
    """First line of a file, and of every run of a service that writes on."""

    format: Literal["select-service decisions"] = "select-service decisions"
    version: Literal[1] = 1


class LoggedRank(Struct, forbid_unknown_fields=True):
    """`null`: its worker does not say."""

    worker_id: int
    dp_rank: int
    total_kv_blocks: int | None
    max_num_batched_tokens: int | None


class LoggedFleet(Struct, tag_field="kind", tag="fleet", forbid_unknown_fields=True):
    """The ranks of a model and tenant; it counts until the next such line of both."""

    model_name: str
    tenant_id: str
    block_size: int
    ranks: list[LoggedRank]


class LoggedDecision(Struct, tag_field="kind", tag="decision", forbid_unknown_fields=True):
    """One decision, written when its reservation has ended."""

    decision: int
    """Its number since the start of the service."""
    at: float
    """When it was made, in Unix seconds."""
    model_name: str
    tenant_id: str
    policy: str
    isl_tokens: int
    block_size: int
    hash_blocks: int
    """Blocks that each of the hashes covers."""
    hashes: str
    """Sequence hashes of 16 hexadecimal digits: equal ones stand for equal prompts up to there."""
    worker_id: int | None
    """Of the chosen rank; `null`: it has left."""
    dp_rank: int | None
    candidates: int
    waited_s: float
    """In the queue, before it was decided."""
    reserved: bool
    """Was load booked? Without that there are no hashes."""
    output_tokens: int | None = None
    """In whole blocks, as far as they were reported; `null`: none was."""


LogLine = LogHead | LoggedFleet | LoggedDecision


def blocks_of_hash(block_size: int) -> int:
    """How many blocks one hash of the log covers."""
    return -(-HASH_TOKENS // block_size)
