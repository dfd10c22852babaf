#!/usr/bin/env python3
"""Recorder of real engine caches and their event streams: the data of tests/recordings.

Runs in an environment with vLLM or SGLang; needs neither a GPU nor a model. The modules in
`recording` describe the real parts of an engine; this script drives the traffic and writes down
all steps.

    python scripts/record_engine_streams.py vllm --out tests/recordings             every stream
    python scripts/record_engine_streams.py vllm --out tests/recordings eviction    the ones named

A recording is a text file of JSON lines, compressed with xz. The first line describes the engine;
every other line is one step, in order:

    ["live",   worker, rank, sequence, topic, payload]        as received from the PUB socket
    ["replay", worker, rank, first, [[frame, ...], ...]]      answer of the engine's replay server
                                                              from now on to a request for
                                                              `first`; a gap follows
    ["prompt", {"token_ids": [...], ...}]                     the fields of a prompt in the API
    ["truth",  [prompt, ...], {"worker/rank": [[gpu, cpu], ...]}]

Payloads and frames are base64. A truth step lists for prompts, by number, the leading blocks that
the engine held at this moment: in GPU memory, and in GPU memory continued by the CPU tier. Lost
batches are not in the file. Everything is seeded, including clocks, so a second recording with the
same engine gives the same file.
"""

import argparse
import importlib
import importlib.metadata
import json
import lzma
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from recording.wire import BLOCK_SIZE, RNG, Prompt, tokens

INT_HASHES = "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"


class Tape:
    """Steps of a recording."""

    def __init__(self, **about: Any) -> None:
        self._lines: list[Any] = [about]
        self._prompts: dict[str, int] = {}

    def add(self, *step: Any) -> None:
        self._lines.append(step)

    def prompt(self, prompt: Prompt) -> int:
        """Return the number of a prompt; a new prompt is written first."""
        key = json.dumps(prompt, sort_keys=True)
        if key not in self._prompts:
            self._prompts[key] = len(self._prompts)
            self.add("prompt", prompt)
        return self._prompts[key]

    def write(self, path: Path) -> None:
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in self._lines)
        path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


class Fleet:
    """Ranks of a recording and their common traffic."""

    def __init__(self, tape: Tape, rank_class: Any, options: SimpleNamespace) -> None:
        self._tape = tape
        self.ranks = [
            rank_class(worker, rank, options, tape.add)
            for worker in range(1, options.workers + 1)
            for rank in range(options.dp)
        ]
        self._seen: list[Prompt] = []
        self._roots = [{"token_ids": tokens(BLOCK_SIZE * n)} for n in (1, 2, 4)]

    def traffic(self, requests: int) -> None:
        """Send prompts with shared beginnings, each to some rank."""
        for _ in range(requests):
            grown = self._seen[-20:] if self._seen and RNG.random() < 0.7 else self._roots
            start = RNG.choice(grown)["token_ids"]
            prompt = {"token_ids": start + tokens(RNG.randrange(3 * BLOCK_SIZE))}
            prompt["token_ids"] = prompt["token_ids"][: 14 * BLOCK_SIZE]
            self.run(RNG.choice(self.ranks), prompt, RNG.randrange(BLOCK_SIZE))

    def run(self, rank: Any, prompt: Prompt, output_tokens: int = 0) -> None:
        self._seen.append(prompt)
        rank.run(prompt, output_tokens)

    def check(self, prompts: list[Prompt] | None = None, last: int = 24) -> None:
        """Write the truth of this moment: of `prompts`, or of the last prompts and the roots."""
        asked = prompts or [*self._seen[-last:], *self._roots]
        numbers = sorted({self._tape.prompt(prompt) for prompt in asked})
        ordered = sorted(asked, key=self._tape.prompt)
        unique = [p for i, p in enumerate(ordered) if i == 0 or p != ordered[i - 1]]
        truth = {
            f"{rank.stream.worker}/{rank.stream.rank}": [rank.count_cached(p) for p in unique]
            for rank in self.ranks
        }
        self._tape.add("truth", numbers, truth)

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()


def no_eviction(fleet: Fleet) -> None:
    for _ in range(3):
        fleet.traffic(8)
        fleet.check()


def eviction(fleet: Fleet) -> None:
    for _ in range(5):
        fleet.traffic(12)
        fleet.check()


def duplicates(fleet: Fleet) -> None:
    """Send a prompt of whole blocks twice: the last block is computed again.

    One engine hash then names two physical blocks, of which eviction takes the older.
    """
    rank = fleet.ranks[0]
    for _ in range(3):
        prompt = {"token_ids": tokens(4 * BLOCK_SIZE)}
        fleet.run(rank, prompt)
        for _ in range(2):
            fleet.run(rank, {"token_ids": tokens(8 * BLOCK_SIZE)})
        fleet.run(rank, prompt)
        for _ in range(12):
            fleet.run(rank, {"token_ids": tokens(3 * BLOCK_SIZE)})
            fleet.check([prompt])
    fleet.check()


def lost_batches(fleet: Fleet) -> None:
    """Lose batches in the middle of the stream, with the replay server's answers."""
    for lost in (1, 5, 3):
        fleet.traffic(8)
        fleet.check()
        lose(fleet, lost)


def late_subscriber(fleet: Fleet) -> None:
    """Subscribe late: everything before is missing and replayed from the first batch."""
    lose(fleet, 9)
    fleet.traffic(12)
    fleet.check()


def lose(fleet: Fleet, batches: int) -> None:
    """Lose the next batches of every rank; the following one arrives."""
    for rank in fleet.ranks:
        rank.stream.lose = batches
    fleet.traffic(14)
    for rank in fleet.ranks:
        while rank.stream.lose:
            fleet.run(rank, {"token_ids": tokens(2 * BLOCK_SIZE)})
        fleet.run(rank, {"token_ids": tokens(2 * BLOCK_SIZE)})
    fleet.check()


def reset(fleet: Fleet) -> None:
    fleet.traffic(12)
    fleet.check()
    fleet.ranks[0].reset()
    fleet.check()
    fleet.traffic(12)
    fleet.check()


def restart(fleet: Fleet) -> None:
    fleet.traffic(16)
    fleet.check()
    fleet.ranks[0].restart()
    fleet.run(fleet.ranks[0], {"token_ids": tokens(3 * BLOCK_SIZE)})
    fleet.check()
    fleet.traffic(12)
    fleet.check()


def salts_adapters_images(fleet: Fleet) -> None:
    """Send a prompt with two salts, two adapters, two images and plain, to different ranks."""
    image = [None, {"mm_objects": [{"mm_hash": 0xFEDCBA9876543210, "offsets": [[16, 32]]}]}]
    other = [None, {"mm_objects": [{"mm_hash": 77, "offsets": [[16, 32]]}]}]
    images: list[Prompt] = [
        {"block_mm_infos": image},
        {"block_mm_infos": other},
        {"block_mm_infos": image, "cache_salt": "tenant-a"},
    ]
    same_tokens(fleet, [*SALTS_AND_ADAPTERS, *images])


def salts_adapters(fleet: Fleet) -> None:
    same_tokens(fleet, SALTS_AND_ADAPTERS)


SALTS_AND_ADAPTERS: list[Prompt] = [
    {},
    {"cache_salt": "tenant-a"},
    {"cache_salt": "tenant-b"},
    {"lora_name": "adapter-a"},
    {"lora_name": "adapter-b"},
    {"lora_name": "adapter-a", "cache_salt": "tenant-a"},
]


def same_tokens(fleet: Fleet, differences: list[Prompt]) -> None:
    """Send prompts of equal tokens that differ in salt, adapter or image, and continuations."""
    kinds = [{"token_ids": tokens(6 * BLOCK_SIZE), **difference} for difference in differences]
    for kind in kinds:
        kind["token_ids"] = kinds[0]["token_ids"]
    for place, kind in enumerate(kinds):
        fleet.run(fleet.ranks[place % len(fleet.ranks)], kind, BLOCK_SIZE)
        fleet.check(kinds)
    for _ in range(12):
        kind = dict(RNG.choice(kinds))
        kind["token_ids"] = kind["token_ids"] + tokens(2 * BLOCK_SIZE)
        fleet.run(RNG.choice(fleet.ranks), kind)
        fleet.check([*kinds, kind])


def eagle(fleet: Fleet) -> None:
    """Use blocks of 16 tokens and the token behind."""
    for _ in range(4):
        fleet.traffic(8)
        fleet.check()


SMALL, LARGE = 49, 513
"""Blocks of a cache that evicts soon, or never."""

Scenarios = dict[str, tuple[Callable[[Fleet], None], dict[str, Any]]]

COMMON: Scenarios = {
    "no_eviction": (no_eviction, {"num_blocks": LARGE}),
    "eviction": (eviction, {}),
    "lost_batches": (lost_batches, {}),
    "late_subscriber": (late_subscriber, {}),
    "reset": (reset, {}),
    "restart": (restart, {}),
    "two_ranks": (eviction, {"workers": 1, "dp": 2}),
    "two_ranks_lost": (lost_batches, {"workers": 1, "dp": 2}),
}
VLLM: Scenarios = {
    "duplicates": (duplicates, {"workers": 1}),
    "cpu_tier": (eviction, {"cpu_blocks": 100, "cpu_tokens": True}),
    "cpu_tier_hash_only": (eviction, {"cpu_blocks": 100}),
    "bytes_hashes": (eviction, {"int_hashes": "0"}),
    "salts_adapters_images": (salts_adapters_images, {"num_blocks": LARGE}),
}
SGLANG: Scenarios = {
    "salts_adapters": (salts_adapters, {"num_blocks": LARGE}),
    "dynamo_format": (eviction, {"dynamo_format": True}),
    "dynamo_format_salts": (salts_adapters, {"num_blocks": LARGE, "dynamo_format": True}),
    "eagle": (eagle, {"is_eagle": True}),
}
ENGINES: dict[str, Scenarios] = {"vllm": COMMON | VLLM, "sglang": COMMON | SGLANG}
DEFAULTS = {
    "workers": 2,
    "dp": 1,
    "num_blocks": SMALL,
    "cpu_blocks": 0,
    "cpu_tokens": False,
    "dynamo_format": False,
    "is_eagle": False,
    "int_hashes": "1",
}
RANK_CLASSES = {"vllm": "VllmEngineRank", "sglang": "SglangEngineRank"}


def record(engine: str, name: str, out: Path) -> Path:
    """Run one scenario and write its file."""
    play, given = ENGINES[engine][name]
    options = SimpleNamespace(**{**DEFAULTS, **given})
    os.environ[INT_HASHES] = options.int_hashes
    RNG.seed(name)
    version = importlib.metadata.version(engine)
    about = {"engine": engine, "version": version, "scenario": name, "block_size": BLOCK_SIZE}
    tape = Tape(**about, workers=options.workers, dp=options.dp, is_eagle=options.is_eagle)
    # Each module imports its engine, of which only one is installed.
    module = importlib.import_module(f"recording.{engine}_rank")
    rank_class = getattr(module, RANK_CLASSES[engine])
    fleet = Fleet(tape, rank_class, options)
    play(fleet)
    fleet.close()
    path = out / f"{engine}-{version}-{name}.jsonl.xz"
    tape.write(path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="Record KV event streams of a real engine.")
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("scenarios", nargs="*", metavar="scenario")
    parser.add_argument("--out", type=Path, required=True, help="directory for the recordings")
    arguments = parser.parse_intermixed_args()
    known = ENGINES[arguments.engine]
    if set(arguments.scenarios) - set(known):
        parser.error(f"scenarios of {arguments.engine}: {', '.join(known)}")
    for name in arguments.scenarios or known:
        path = record(arguments.engine, name, arguments.out)
        print(f"{path}: {path.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
