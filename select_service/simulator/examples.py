"""Ready-made curl lines for the running demo: each works as it is printed."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from select_service.simulator.workload import Session, Workload
from select_service.simulator.world import World

EXAMPLE_BLOCKS = 4
"""The example prompt has as many, or as many more as tell one rank from all others."""
RESERVATION_ID = "my-request"
JSON = "-H 'content-type: application/json'"


class Example(NamedTuple):
    """One line for the shell and what it shows."""

    caption: str
    command: str


class KnownPrompt(NamedTuple):
    """The beginning of a session; `held` are the leading blocks of it that each rank holds."""

    tokens: list[int]
    blocks: int
    held: list[int]


def examples(
    base_url: str, model_name: str, known: KnownPrompt, rank_names: Sequence[str]
) -> Iterator[Example]:
    """In an order that makes sense when they are tried one after the other."""
    scope = {"model_name": model_name}
    prompt = _json({**scope, "token_ids": known.tokens})
    reserve = _json({**scope, "reservation_id": RESERVATION_ID, "token_ids": known.tokens})
    reservation = f"{base_url}/reservations/{RESERVATION_ID}"
    yield Example("the workers and their event streams", f"curl -s {base_url}/workers")
    yield Example(
        f"what a prompt would cost on each rank, and who holds it: {_held(known, rank_names)}",
        f"curl -s {base_url}/potential_loads {JSON} -d '{prompt}'",
    )
    yield Example(
        "choose a rank for this prompt: what a rank has cached counts, and how busy it is",
        f"curl -s {base_url}/select {JSON} -d '{prompt}'",
    )
    yield Example(
        "choose and book in one step",
        f"curl -s {base_url}/select_and_reserve {JSON} -d '{reserve}'",
    )
    yield Example("the booked load", f"curl -s '{base_url}/loads?model_name={model_name}'")
    yield Example("the prompt is computed", f"curl -s -X POST {reservation}/prefill_complete")
    yield Example(
        "the answer grew by a block", f"curl -s -X POST {reservation}/output_block {JSON} -d '{{}}'"
    )
    yield Example("the request is done", f"curl -s -X DELETE {reservation}")
    yield Example("metrics for Prometheus", f"curl -s {base_url}/metrics")


def _held(known: KnownPrompt, rank_names: Sequence[str]) -> str:
    """Such as `worker 3 holds all 4 blocks, the others would have to compute ...`."""
    block_size = len(known.tokens) // known.blocks
    ranks = zip(rank_names, known.held, strict=True)
    whole = [name for name, held in ranks if held == known.blocks]
    others = {known.blocks - held for held in known.held if held < known.blocks}
    told = f"{', '.join(whole) or 'nobody'} holds all {known.blocks} blocks"
    if not others:
        return told
    least, most = min(others) * block_size, max(others) * block_size
    amount = f"{most}" if least == most else f"{least} to {most}"
    return f"{told}, the others would have to compute {amount} of its {len(known.tokens)} tokens"


def telling_prompt(world: World, workload: Workload) -> KnownPrompt:
    """The shortest beginning of a session that one rank holds and no other; else a session that
    as few as possible hold."""

    def choice(session: Session) -> tuple[int, int, list[int]]:
        held = sorted(line.engine.held(session.keys) for line in world.lines)
        second = held[-2] if len(held) > 1 else 0
        is_told_apart = held[-1] > second
        blocks = max(EXAMPLE_BLOCKS, second + 1) if is_told_apart else EXAMPLE_BLOCKS
        return not is_told_apart, min(blocks, held[-1] or EXAMPLE_BLOCKS), held

    session = min(workload.sessions, key=choice)
    _, blocks, _ = choice(session)
    tokens = session.tokens[: blocks * workload.block_size].tolist()
    keys = session.keys[:blocks]
    return KnownPrompt(tokens, blocks, [line.engine.held(keys) for line in world.lines])


def _json(body: dict[str, object]) -> str:
    return msgspec.json.encode(body).decode()
