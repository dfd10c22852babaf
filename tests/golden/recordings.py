"""Reader of recordings of real engines (scripts/record_engine_streams.py has the contents)."""

import base64
import json
import lzma
from pathlib import Path
from typing import Any, NamedTuple

DIRECTORY = Path(__file__).parent.parent / "recordings"


class Place(NamedTuple):
    """Rank of a recording; both numbers count as in the API."""

    worker_id: int
    dp_rank: int


class Live(NamedTuple):
    place: Place
    seq: int
    topic: bytes
    payload: bytes


class Replay(NamedTuple):
    """Replay of the engine: from now on these messages answer a request for `first`."""

    place: Place
    first: int
    answer: list[list[bytes]]


class Truth(NamedTuple):
    """Blocks of every rank: per prompt the blocks on GPU, and those continued by the CPU tier."""

    prompts: list[dict[str, Any]]
    held: dict[Place, list[list[int]]]


class Recording(NamedTuple):
    about: dict[str, Any]
    steps: list[Live | Replay | Truth]

    @property
    def places(self) -> list[Place]:
        workers, ranks = range(1, self.about["workers"] + 1), range(self.about["dp"])
        return [Place(worker, rank) for worker in workers for rank in ranks]


def names() -> list[str]:
    """Return the names of all recordings."""
    return sorted(path.name.removesuffix(".jsonl.xz") for path in DIRECTORY.glob("*.jsonl.xz"))


def load(name: str) -> Recording:
    lines = lzma.decompress((DIRECTORY / f"{name}.jsonl.xz").read_bytes()).splitlines()
    prompts: list[dict[str, Any]] = []
    steps: list[Live | Replay | Truth] = []
    for kind, *step in map(json.loads, lines[1:]):
        if kind == "prompt":
            prompts.append(step[0])
        else:
            steps.append(_STEPS[kind](step, prompts))
    return Recording(json.loads(lines[0]), steps)


def _live(step: list[Any], _: list[dict[str, Any]]) -> Live:
    worker_id, dp_rank, seq, topic, payload = step
    return Live(Place(worker_id, dp_rank), seq, topic.encode(), base64.b64decode(payload))


def _replay(step: list[Any], _: list[dict[str, Any]]) -> Replay:
    worker_id, dp_rank, first, answer = step
    frames = [[base64.b64decode(frame) for frame in message] for message in answer]
    return Replay(Place(worker_id, dp_rank), first, frames)


def _truth(step: list[Any], prompts: list[dict[str, Any]]) -> Truth:
    numbers, held = step
    return Truth(
        [prompts[number] for number in numbers],
        {Place(*map(int, place.split("/"))): rows for place, rows in held.items()},
    )


_STEPS = {"live": _live, "replay": _replay, "truth": _truth}
