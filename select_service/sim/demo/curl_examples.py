"""Curl commands for the running demo, each complete as printed."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from select_service.sim.demo.conversations import ConversationWorkload, DemoConversation
from select_service.sim.engine.kv_block_pool import KvBlockPool

EXAMPLE_BLOCKS = 4
"""Blocks of the example prompt, or more if needed to distinguish a rank from all others."""
RESERVATION_ID = "my-request"
JSON = "-H 'content-type: application/json'"


class CurlExample(NamedTuple):
    """A shell command and its caption."""

    caption: str
    command: str


class ExamplePrompt(NamedTuple):
    """Beginning of a session. `held`: leading blocks that each rank holds."""

    tokens: list[int]
    blocks: int
    cached_blocks: list[int]


def curl_examples(
    base_url: str, model_name: str, known: ExamplePrompt, rank_names: Sequence[str]
) -> Iterator[CurlExample]:
    """Yield the examples in a sensible order of trial."""
    scope: dict[str, object] = {"model_name": model_name, "token_ids": known.tokens}
    prompt, get = f"{JSON} -d '{_json_text(scope)}'", f"curl -s {base_url}"
    reserve = f"{JSON} -d '{_json_text(scope | {'reservation_id': RESERVATION_ID})}'"
    reservation = f"{base_url}/reservations/{RESERVATION_ID}"
    post = f"curl -s -X POST {reservation}"
    costs = f"cost of a prompt on each rank; {_cached_text(known, rank_names)}"
    choice = "choose a rank for this prompt, by cached blocks and load"
    yield CurlExample("workers and their event streams", f"{get}/workers")
    yield CurlExample(costs, f"{get}/potential_loads {prompt}")
    yield CurlExample(choice, f"{get}/select {prompt}")
    yield CurlExample("choose and reserve in one step", f"{get}/select_and_reserve {reserve}")
    loads = f"curl -s '{base_url}/loads?model_name={model_name}'"
    yield CurlExample("load of the reservations", loads)
    yield CurlExample("report the end of the prefill", f"{post}/prefill_complete")
    yield CurlExample("report another output block", f"{post}/output_block {JSON} -d '{{}}'")
    yield CurlExample("end the request", f"curl -s -X DELETE {reservation}")
    yield CurlExample("metrics for Prometheus", f"{get}/metrics")


def _cached_text(known: ExamplePrompt, rank_names: Sequence[str]) -> str:
    """Return a text such as `worker 3 holds all 4 blocks, the others would have to compute ...`."""
    block_size = len(known.tokens) // known.blocks
    ranks = zip(rank_names, known.cached_blocks, strict=True)
    whole = [name for name, held in ranks if held == known.blocks]
    others = {known.blocks - held for held in known.cached_blocks if held < known.blocks}
    told = f"{', '.join(whole) or 'no rank'} holds all {known.blocks} blocks"
    if not others:
        return told
    least, most = min(others) * block_size, max(others) * block_size
    amount = f"{most}" if least == most else f"{least} to {most}"
    return f"{told}, the others would have to compute {amount} of its {len(known.tokens)} tokens"


def distinguishing_prompt(
    pools: Sequence[KvBlockPool], workload: ConversationWorkload
) -> ExamplePrompt:
    """Return the shortest beginning of a session that exactly one rank holds.

    Without such a session, return the beginning that the fewest ranks hold.
    """

    def choice(session: DemoConversation) -> tuple[int, int, list[int]]:
        held = sorted(pool.count_cached(session.chain) for pool in pools)
        second = held[-2] if len(held) > 1 else 0
        is_told_apart = held[-1] > second
        # One block more than the second best rank holds is enough to distinguish the best.
        blocks = max(EXAMPLE_BLOCKS, second + 1) if is_told_apart else EXAMPLE_BLOCKS
        return not is_told_apart, min(blocks, held[-1] or EXAMPLE_BLOCKS), held

    session = min(workload.sessions, key=choice)
    _, blocks, _ = choice(session)
    tokens = session.tokens[: blocks * workload.block_size].tolist()
    chain = session.chain[:blocks]
    return ExamplePrompt(tokens, blocks, [pool.count_cached(chain) for pool in pools])


def _json_text(body: dict[str, object]) -> str:
    return msgspec.json.encode(body).decode()
