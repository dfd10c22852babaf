"""Prefill by another engine than the rest of an answer."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import aiohttp
import msgspec
from gateway_engine import BUSY, ERROR_BYTES_MAX, EngineFailed
from gateway_selector import NoAnswer, Rank

from select_service.client import HandoffError, make_decode_body, make_prefill_body
from select_service.schemas.pairs import Handoff


class PrefillLeg(NamedTuple):
    """Rank that computes the prompt, and the hand-over to the rank of the answer."""

    rank: Rank
    handoff: Handoff

    @classmethod
    def of(cls, chosen: Mapping[str, Any]) -> Self | None:
        """Return the prefill leg of a pair, or None if one rank does both."""
        if "handoff" not in chosen:
            return None
        return cls(Rank.of(chosen["legs"][0]), msgspec.convert(chosen["handoff"], Handoff))

    @property
    def is_sequential(self) -> bool:
        return self.handoff.order == "sequential"

    async def compute(self, http: aiohttp.ClientSession, body: Mapping[str, Any]) -> dict[str, Any]:
        """Let the engine compute the prompt and return its reply. Raises EngineFailed, NoAnswer."""
        url = f"{self.rank.endpoint.rstrip('/')}/v1/completions"
        headers = {"x-data-parallel-rank": str(self.rank.dp_rank)}
        made = make_prefill_body(body, self.handoff)
        try:
            async with http.post(url, json=made, headers=headers) as response:
                if response.status == 200:
                    reply: dict[str, Any] = await response.json()
                    return reply
                content = await response.content.read(ERROR_BYTES_MAX)
        except (aiohttp.ClientError, ValueError) as error:
            raise EngineFailed(f"no prefill: {error or type(error).__name__}") from error
        if response.status in BUSY or response.status >= 500:
            raise EngineFailed(f"prefill status {response.status}", response.status not in BUSY)
        raise NoAnswer(response.status, content)

    def decode_body(
        self, body: Mapping[str, Any], reply: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Return the body for the other engine. Raises EngineFailed."""
        try:
            return make_decode_body(body, self.handoff, reply)
        except HandoffError as error:
            raise EngineFailed(str(error)) from error
