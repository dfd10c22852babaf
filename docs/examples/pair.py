r"""Compute a prompt on a prefill engine and the answer on a decode engine.

    python docs/examples/pair.py --selector http://selector:8092 --model qwen 1 2 3 4 5 6 7 8

The service chooses both engines, or a single engine where that is cheaper, and returns the hand-off
of the KV cache. If the prefill engine fails, the prefill leg moves; the decode leg stays. The
program prints the answer to the token ids. Needs the extra `client`.
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
    """Return the response of an engine. Raises httpx.HTTPError."""
    headers = {"x-data-parallel-rank": str(leg.dp_rank)}
    response = await http.post(f"{leg.endpoint}/v1/completions", json=body, headers=headers)
    return response.raise_for_status().json()


async def complete_prompt(
    http: httpx.AsyncClient, lease: AsyncPairLease, body: dict[str, Any]
) -> Any:
    """Return the whole answer. Raises httpx.HTTPError, HandoffError, SelectorError."""
    for attempt in range(PREFILLS_MAX):
        try:
            decode_body = await run_prefill(http, lease, body)
            break
        except (httpx.HTTPError, HandoffError):
            if attempt == PREFILLS_MAX - 1:
                raise
            await lease.move_leg("prefill")  # to another engine, or to the decode engine itself
    return await call_engine(http, lease.decode, decode_body)


async def run_prefill(
    http: httpx.AsyncClient, lease: AsyncPairLease, body: dict[str, Any]
) -> dict[str, Any]:
    """Send the prompt to the prefill engine and return the body for the decode engine."""
    if lease.handoff is None:
        return body
    prefill = call_engine(http, lease.prefill, lease.prefill_body(body))
    if lease.handoff.order == "concurrent":
        # The decode engine waits for the blocks: both calls run at the same time.
        task = asyncio.create_task(prefill)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return lease.decode_body(body)
    prefill_response = await prefill
    lease.prefill_complete()
    return lease.decode_body(body, prefill_response)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--selector", required=True, nargs="+", help="URLs of selectors")
    parser.add_argument("--model", default="default")
    parser.add_argument("--local", choices=["auto", "never", "always"], default="auto")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("token_ids", type=int, nargs="+")
    options = parser.parse_intermixed_args()
    body = {"model": options.model, "prompt": options.token_ids, "max_tokens": options.max_tokens}
    async with (
        httpx.AsyncClient(timeout=httpx.Timeout(None, connect=3)) as http,
        AsyncSelector(options.selector, model_name=options.model) as selector,
        selector.pair_lease(token_ids=options.token_ids, local=options.local) as lease,
    ):
        answer = await complete_prompt(http, lease, body)
        lease.tokens(answer["usage"]["completion_tokens"])
        ranks = {"prefill": lease.prefill.worker_id, "decode": lease.decode.worker_id}
        print(json.dumps({**ranks, "text": answer["choices"][0]["text"]}))


if __name__ == "__main__":
    asyncio.run(main())
