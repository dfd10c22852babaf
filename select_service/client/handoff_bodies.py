"""Bodies of the calls to both workers of a pair.  PURE."""

from collections.abc import Mapping
from typing import Any

from msgspec import UnsetType

from select_service.schemas.pairs import Handoff


class HandoffError(ValueError):
    """Raised when a request or a reply does not fit the hand-over of a pair."""


def make_prefill_body(body: Mapping[str, Any], handoff: Handoff) -> dict[str, Any]:
    """Return the body of the call to the prefill worker.  Raises HandoffError.

    body: request of the client, in the form of OpenAI's interface
    """
    # Engines number the samples of a request by themselves, so their caches cannot be handed over.
    if (n := body.get("n")) is not None and n != 1:
        raise HandoffError(f"n is {n}, and a pair serves one answer: send one request for each")
    params = {} if isinstance(handoff.prefill_params, UnsetType) else handoff.prefill_params
    made = {**body, **params}
    if params.get("max_tokens") == 1:
        if "max_completion_tokens" in body:
            made["max_completion_tokens"] = 1
        made.pop("min_tokens", None)
    if not made.get("stream"):
        made.pop("stream_options", None)
    return made


def make_decode_body(
    body: Mapping[str, Any], handoff: Handoff, reply: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the body of the call to the decode worker.  Raises HandoffError.

    reply: reply of the prefill worker; None for `concurrent` hand-overs
    """
    made = dict(body)
    if not isinstance(handoff.pass_on, UnsetType):
        assert not isinstance(handoff.reply_path, UnsetType)
        passed = _value_at(reply, handoff.reply_path)
        if not isinstance(passed, Mapping):
            raise HandoffError(
                f"the reply of the prefill worker has no `{handoff.reply_path}`: "
                f"check that its connector is {handoff.kind}"
            )
        made[handoff.pass_on] = dict(passed)
    params = {} if isinstance(handoff.decode_params, UnsetType) else handoff.decode_params
    for name, value in params.items():
        before = made.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        made[name] = {**before, **value} if both else value  # type: ignore[dict-item]
    return made


def _value_at(reply: Any, path: str) -> Any:
    """Return the value at a path with dots; None if there is none."""
    for name in path.split("."):
        try:
            reply = reply[int(name) if name.isdecimal() else name]
        except (LookupError, TypeError):
            return None
    return reply
