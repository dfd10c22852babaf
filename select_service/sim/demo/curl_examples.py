"""Curl commands for the running demo, each complete as printed."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from select_service.sim.demo.conversations import ConversationWorkload, DemoConversation
from select_service.sim.demo.virtual_world import VirtualWorld

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
    scope = {"model_name": model_name}
    prompt = _json_text({**scope, "token_ids": known.tokens})
    reserve = _json_text({**scope, "reservation_id": RESERVATION_ID, "token_ids": known.tokens})
    reservation = f"{base_url}/reservations/{RESERVATION_ID}"
    yield CurlExample("workers and their event streams", f"curl -s {base_url}/workers")
    yield CurlExample(
        f"cost of a prompt on each rank; {_cached_text(known, rank_names)}",
        f"curl -s {base_url}/potential_loads {JSON} -d '{prompt}'",
    )
    yield CurlExample(
        "choose a rank for this prompt, by cached blocks and load",
        f"curl -s {base_url}/select {JSON} -d '{prompt}'",
    )
    yield CurlExample(
        "choose and reserve in one step",
        f"curl -s {base_url}/select_and_reserve {JSON} -d '{reserve}'",
    )
    yield CurlExample(
        "load of the reservations", f"curl -s '{base_url}/loads?model_name={model_name}'"
    )
    yield CurlExample(
        "report the end of the prefill", f"curl -s -X POST {reservation}/prefill_complete"
    )
    yield CurlExample(
        "report another output block",
        f"curl -s -X POST {reservation}/output_block {JSON} -d '{{}}'",
    )
    yield CurlExample("end the request", f"curl -s -X DELETE {reservation}")
    yield CurlExample("metrics for Prometheus", f"curl -s {base_url}/metrics")


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


def distinguishing_prompt(world: VirtualWorld, workload: ConversationWorkload) -> ExamplePrompt:
    """Return the shortest beginning of a session that exactly one rank holds.

    Without such a session, return the beginning that the fewest ranks hold.
    """

    def choice(session: DemoConversation) -> tuple[int, int, list[int]]:
        held = sorted(line.engine.count_cached(session.keys) for line in world.lines)
        second = held[-2] if len(held) > 1 else 0
        is_told_apart = held[-1] > second
        # One block more than the second best rank holds is enough to distinguish the best.
        blocks = max(EXAMPLE_BLOCKS, second + 1) if is_told_apart else EXAMPLE_BLOCKS
        return not is_told_apart, min(blocks, held[-1] or EXAMPLE_BLOCKS), held

    session = min(workload.sessions, key=choice)
    _, blocks, _ = choice(session)
    tokens = session.tokens[: blocks * workload.block_size].tolist()
    keys = session.keys[:blocks]
    return ExamplePrompt(tokens, blocks, [line.engine.count_cached(keys) for line in world.lines])


def _json_text(body: dict[str, object]) -> str:
    return msgspec.json.encode(body).decode()
