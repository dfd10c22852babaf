"""Ready-made curl lines for the running demo: each works as it is printed."""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from select_service.simulator.workload import Session, Workload
from select_service.simulator.world import World

EXAMPLE_BLOCKS = 2
RESERVATION_ID = "my-request"
JSON = "-H 'content-type: application/json'"


class Example(NamedTuple):
    """One line for the shell and what it shows."""

    caption: str
    command: str


def examples(base_url: str, model_name: str, world: World, workload: Workload) -> Iterator[Example]:
    """In an order that makes sense when they are tried one after the other."""
    session, held = best_known_session(world, workload)
    prompt = session.tokens[: EXAMPLE_BLOCKS * workload.block_size].tolist()
    scope = {"model_name": model_name}
    select = _json({**scope, "token_ids": prompt})
    reserve = _json({**scope, "reservation_id": RESERVATION_ID, "token_ids": prompt})
    reservation = f"{base_url}/reservations/{RESERVATION_ID}"
    yield Example("the workers and their event streams", f"curl -s {base_url}/workers")
    yield Example(
        f"choose a rank; {held} of {len(world.lines)} ranks hold this prompt",
        f"curl -s {base_url}/select {JSON} -d '{select}'",
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


def best_known_session(world: World, workload: Workload) -> tuple[Session, int]:
    """The session whose first blocks most ranks hold, and how many they are."""

    def holders(session: Session) -> int:
        keys = session.keys[:EXAMPLE_BLOCKS]
        return sum(1 for line in world.lines if line.engine.held(keys) == len(keys))

    best = max(workload.sessions, key=holders)
    return best, holders(best)


def _json(body: dict[str, object]) -> str:
    return msgspec.json.encode(body).decode()
