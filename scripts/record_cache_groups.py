#!/usr/bin/env python3
"""Recorder of vLLM's cache managers with several cache groups: the data of tests/data/hybrid.

Runs in an environment with vLLM; needs neither a GPU nor a model (tests/data/hybrid/README.md has
the commands that make one). The modules in `recording` have the layouts and the real parts of the
engine; this script drives conversations and writes events and reusable tokens down.

    python scripts/record_cache_groups.py --out tests/data/hybrid            every layout
    python scripts/record_cache_groups.py --out tests/data/hybrid window_first     the ones named
    python scripts/record_cache_groups.py --list                             names of the layouts

A recording is `VERSION/LAYOUT.jsonl.xz` under the folder; its lines are in the same README.
Everything is seeded: the same engine gives the same files.
"""

import argparse
import importlib
import importlib.metadata
import json
import lzma
import random
import sys
from pathlib import Path
from typing import Any

import msgspec
from recording.cache_layouts import LAYOUTS, RecordedLayout
from recording.conversations import Conversations

PROMPTS = 30
STEPS = (0, 1, 2, 6, 60)
"""Steps of the engine between two prompts."""
CROWDED_STEPS = (0, 0, 1, 2, 6, 25)
"""The same for layouts that run many requests in little memory, of which some are preempted."""
CROWDED = 6
QUESTIONS_BETWEEN = 0.25
"""Share of prompts behind which another one is looked up while the engine computes."""
VERSIONS = "versions with layouts: " + ", ".join(LAYOUTS)


class GroupRecording:
    """Rows of a recording; a prompt names the earlier prompt that shares most with it."""

    def __init__(self, about: dict[str, Any]) -> None:
        self.rows: list[dict[str, Any]] = [about]
        self._prompts: list[list[int]] = []

    def add_batch(self, batch: Any) -> None:
        self.rows.append({"batch": batch})

    def add_prompt(self, prompt: dict[str, Any], reused: int) -> None:
        tokens = prompt["tokens"]
        shared = [count_shared(tokens, other) for other in self._prompts]
        keep = max(shared, default=0)
        row = {"reused": reused, **prompt, "tokens": tokens[keep:]}
        if keep:
            row |= {"like": shared.index(keep), "keep": keep}
        self.rows.append(row)
        self._prompts.append(tokens)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in self.rows)
        path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def count_shared(one: list[int], other: list[int]) -> int:
    """Return the number of leading tokens that two prompts share."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def decode_batch(events: list[Any], number: int) -> Any:
    """Return a batch as a subscriber decodes it."""
    published = importlib.import_module("vllm.distributed.kv_events")
    batch = published.KVEventBatch(ts=float(number), events=events, data_parallel_rank=0)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(batch))


def record(name: str, layout: RecordedLayout, version: str) -> tuple[GroupRecording, int]:
    """Run one layout; return its recording and the number of preemptions."""
    # Imported when needed: --list and --help work without vLLM.
    module = importlib.import_module("recording.grouped_engine_rank")
    hashing = importlib.import_module("vllm.utils.hashing")
    rng = random.Random(f"{version} {name}")
    algorithm = rng.choice(["sha256", "sha256", "sha256_cbor"])
    rank = module.GroupedEngineRank(layout, getattr(hashing, algorithm), rng)
    about = {"layout": name, "engine": f"vllm {version}", "names": algorithm}
    recording = GroupRecording(about | layout.description())
    keyed = [("salt", salt) for salt in layout.salts] + [("lora", lora) for lora in layout.adapters]
    talks = Conversations(rng, layout.longest, tuple({key: value} for key, value in keyed))
    steps = CROWDED_STEPS if layout.running >= CROWDED else STEPS
    batches = 0

    def step() -> None:
        rank.step()
        publish()

    def publish() -> None:
        nonlocal batches
        if events := rank.take_events():
            recording.add_batch(decode_batch(events, batches))
            batches += 1

    for prompt, output_tokens in talks.turns(PROMPTS):
        if prompt is None:
            while rank.is_busy:
                step()
            rank.reset()
            publish()
            continue
        recording.add_prompt(prompt, rank.count_reusable(prompt))
        rank.add_request(prompt, output_tokens)
        for _ in range(rng.choice(steps)):
            if rank.is_busy:
                step()
        if rng.random() < QUESTIONS_BETWEEN:
            other = talks.part_of(prompt)
            recording.add_prompt(other, rank.count_reusable(other))
    return recording, rank.preemptions


def main() -> None:
    parser = argparse.ArgumentParser(description="Record cache groups of vLLM's cache managers.")
    parser.add_argument("layouts", nargs="*", metavar="LAYOUT")
    parser.add_argument("--out", type=Path, help="folder for the recordings")
    parser.add_argument("--list", action="store_true", help="print the layouts of all versions")
    arguments = parser.parse_intermixed_args()
    if arguments.list:
        for version, layouts in LAYOUTS.items():
            print(f"vllm {version}: {', '.join(layouts)}")
        return
    if arguments.out is None:
        parser.error("--out is missing: give a folder for the recordings")
    version = importlib.metadata.version("vllm")
    if version not in LAYOUTS:
        parser.error(f"vllm {version} is installed; {VERSIONS}")
    unknown = set(arguments.layouts) - set(LAYOUTS[version])
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: no such layout of vllm {version}; see --list")
    for name in arguments.layouts or LAYOUTS[version]:
        recording, preemptions = record(name, LAYOUTS[version][name], version)
        path = arguments.out / f"vllm-{version}" / f"{name}.jsonl.xz"
        recording.write(path)
        reused = [row["reused"] for row in recording.rows if "reused" in row]
        print(
            f"{path}: {path.stat().st_size} bytes, {len(reused)} prompts, {sum(reused)} tokens"
            f" reused, {preemptions} preemptions",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
