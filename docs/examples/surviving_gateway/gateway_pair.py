"""Prefill leg of a pair: one engine computes the prompt, another engine the answer."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import aiohttp
import msgspec
from gateway_engine import BUSY_STATUSES, ERROR_BYTES_MAX, EngineError
from gateway_selector import GatewayError, Rank

from select_service.client import HandoffError, make_decode_body, make_prefill_body
from select_service.schemas.pairs import Handoff


class PrefillLeg(NamedTuple):
    """Rank that computes the prompt, and the hand-over to the rank of the answer."""

    rank: Rank
    handoff: Handoff

    @classmethod
    def from_selection(cls, selection: Mapping[str, Any]) -> Self | None:
        """Return the prefill leg of a pair, or None if a single rank does both."""
        if "handoff" not in selection:
            return None
        handoff = msgspec.convert(selection["handoff"], Handoff)
        return cls(Rank.from_record(selection["legs"][0]), handoff)

    @property
    def is_sequential(self) -> bool:
        return self.handoff.order == "sequential"

    async def prefill(self, http: aiohttp.ClientSession, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send the prefill request and return the reply. Raises EngineError, GatewayError."""
        url = f"{self.rank.endpoint.rstrip('/')}/v1/completions"
        headers = {"x-data-parallel-rank": str(self.rank.dp_rank)}
        payload = make_prefill_body(body, self.handoff)
        try:
            async with http.post(url, json=payload, headers=headers) as response:
                if response.status == 200:
                    reply: dict[str, Any] = await response.json()
                    return reply
                content = await response.content.read(ERROR_BYTES_MAX)
        except (aiohttp.ClientError, ValueError) as error:
            raise EngineError(f"prefill failed: {error or type(error).__name__}") from error
        if response.status in BUSY_STATUSES or response.status >= 500:
            is_fault = response.status not in BUSY_STATUSES
            raise EngineError(f"prefill status {response.status}", is_fault)
        raise GatewayError(response.status, content)

    def build_decode_body(
        self, body: Mapping[str, Any], reply: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Return the body for the decode engine. Raises EngineError."""
        try:
            return make_decode_body(body, self.handoff, reply)
        except HandoffError as error:
            raise EngineError(str(error)) from error
