r"""Let one engine compute a prompt and another one the answer.

    python docs/examples/pair.py --selector http://selector:8092 --model qwen 1 2 3 4 5 6 7 8

The service chooses both engines, or one for both where that is cheaper, and says how the KV cache
gets from one to the other. A prefill engine that fails is replaced; the other leg stays. Prints
the answer to the token ids. Needs the extra `client`.
"""

import argparse
import asyncio
import json
from typing import Any

import httpx

from select_service.client import AsyncPairLease, AsyncSelector, HandoffError
from select_service.schemas.pairs import PairLeg

PREFILLS_MAX = 3


async def call_engine(http: httpx.AsyncClient, leg: PairLeg, body: dict[str, Any]) -> Any:
    """Return the reply of an engine. Raises httpx.HTTPError."""
    headers = {"x-data-parallel-rank": str(leg.dp_rank)}
    answer = await http.post(f"{leg.endpoint}/v1/completions", json=body, headers=headers)
    return answer.raise_for_status().json()


async def complete(http: httpx.AsyncClient, lease: AsyncPairLease, body: dict[str, Any]) -> Any:
    """Return the whole answer. Raises httpx.HTTPError, HandoffError, SelectorError."""
    for attempt in range(PREFILLS_MAX):
        try:
            decode_body = await hand_over(http, lease, body)
            break
        except (httpx.HTTPError, HandoffError):
            if attempt == PREFILLS_MAX - 1:
                raise
            await lease.move_leg("prefill")  # to another engine, or to the decode engine itself
    return await call_engine(http, lease.decode, decode_body)


async def hand_over(
    http: httpx.AsyncClient, lease: AsyncPairLease, body: dict[str, Any]
) -> dict[str, Any]:
    """Let the prefill engine compute the prompt and return the body for the decode engine."""
    if lease.handoff is None:
        return body
    prefill = call_engine(http, lease.prefill, lease.prefill_body(body))
    if lease.handoff.order == "concurrent":
        # The decode engine waits for the blocks itself: both calls run at the same time.
        task = asyncio.create_task(prefill)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return lease.decode_body(body)
    reply = await prefill
    lease.prefill_complete()
    return lease.decode_body(body, reply)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--selector", required=True, nargs="+", help="URLs of selectors")
    parser.add_argument("--model", default="default")
    parser.add_argument("--local", choices=["auto", "never", "always"], default="auto")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("token_ids", type=int, nargs="+")
    given = parser.parse_intermixed_args()
    body = {"model": given.model, "prompt": given.token_ids, "max_tokens": given.max_tokens}
    async with (
        httpx.AsyncClient(timeout=httpx.Timeout(None, connect=3)) as http,
        AsyncSelector(given.selector, model_name=given.model) as selector,
        selector.pair_lease(token_ids=given.token_ids, local=given.local) as lease,
    ):
        answer = await complete(http, lease, body)
        lease.tokens(answer["usage"]["completion_tokens"])
        ranks = {"prefill": lease.prefill.worker_id, "decode": lease.decode.worker_id}
        print(json.dumps({**ranks, "text": answer["choices"][0]["text"]}))


if __name__ == "__main__":
    asyncio.run(main())
