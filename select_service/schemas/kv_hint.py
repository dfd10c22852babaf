"""Hint of another worker that holds more of a prompt, in answers about bookings.

Source of the format: Dynamo 1.6.1, measured.
"""

from typing import Literal

from msgspec import Struct

from select_service.schemas.common import U64


class KvFetch(Struct, kw_only=True):
    """Blocks that another worker could send."""

    block_hashes: list[U64]
    """Engine hashes of the source for the leading blocks of the prompt, as unsigned integers."""
    source_control_endpoint: str
    """Registered control endpoint of the source's rank."""


class KvHintAction(Struct, kw_only=True):
    """Proposed action."""

    action_id: str = "a1"
    """Id of the action within the hint."""
    action_type: Literal["kv.fetch"] = "kv.fetch"
    """Type of the action, of which only one exists."""
    action_version: str = "1.0"
    """Version of the payload."""
    payload: KvFetch
    """What to fetch, and where."""


class KvHint(Struct, kw_only=True):
    """Hint for the engine that runs a booked request."""

    protocol_version: str = "0.1"
    """Version of the hint."""
    message_id: str
    """Id of the booking."""
    actions: list[KvHintAction]
    """Proposed actions; always one."""
