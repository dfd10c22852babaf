"""Tests of streams of real engines, replayed into the index: overlaps must equal the truth."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from indexer.events.event_feed import EventFeed
from indexer.events.kv_event_source import KvSource
from indexer.events.replay_actions import Action, StartReplay
from indexer.hashing.block_hashing import compute_block_hashes
from indexer.index.prefix_index import PrefixIndex
from tests.golden.recordings import Live, Place, Recording, Replay, Truth, load, names

BLOCKS_MAX = 1 << 14


class Readers:
    """Index with a feed per rank.

    delay: number of further live messages of a rank before the recorded replay server answers
    """

    def __init__(self, recording: Recording, delay: int = 0, counted: bool = True) -> None:
        self._counted = counted
        self.index = PrefixIndex(BLOCKS_MAX)
        self.block_size = recording.about["block_size"]
        self.is_eagle = recording.about["is_eagle"]
        self.delay = delay
        self.writers = {place: self.index.open_slot() for place in recording.places}
        self.feeds = {place: self._feed(place) for place in recording.places}
        self.answers: dict[Place, deque[Replay]] = {p: deque() for p in recording.places}
        self.wanted: dict[Place, tuple[int, int]] = {}
        self.replays = 0
        self.seen: dict[tuple[Place, int], bytes] = {}

    def _feed(self, place: Place) -> EventFeed:
        writers = {p.dp_rank: w for p, w in self.writers.items() if p.worker_id == place.worker_id}
        source = KvSource(
            worker_id=place.worker_id,
            dp_rank=place.dp_rank,
            endpoint="inproc://live",
            replay_endpoint="inproc://replay",
            block_size=self.block_size,
            is_eagle=self.is_eagle,
            counted=self._counted,
            writers=writers,
        )
        return EventFeed(source)

    def live(self, step: Live) -> None:
        self.seen[step.place, step.seq] = step.payload
        feed = self.feeds[step.place]
        self._act(step.place, feed.receive(step.seq, step.payload, now=0.0))
        if step.place in self.wanted:
            first, patience = self.wanted[step.place]
            self.wanted[step.place] = (first, patience - 1)
            if patience == 0:
                self._answer(step.place)

    def _act(self, place: Place, action: Action) -> None:
        while self.feeds[place].is_busy:
            action = self.feeds[place].continue_work(0.0)
        if isinstance(action, StartReplay):
            self.wanted[place] = (action.start, self.delay)
        elif action is not None:
            self.wanted.pop(place, None)

    def _answer(self, place: Place) -> None:
        first, _ = self.wanted.pop(place)
        answer = self.answers[place].popleft()
        assert first == max(0, answer.first - 1), "it must start at the last batch that was applied"
        self.replays += 1
        frames = [(int.from_bytes(each[-2], "big"), each[-1]) for each in answer.answer]
        self.seen |= {(place, seq): payload for seq, payload in frames}
        if first < answer.first:  # recorded from a reader that requested the next message
            frames.insert(0, (first, self.seen[place, first]))
        for seq, payload in frames:
            action = self.feeds[place].receive_replayed(seq, payload, now=0.0)
            self._act(place, action)
            if action is not None:
                return

    def settle(self) -> None:
        while self.wanted:
            self._answer(next(iter(self.wanted)))

    def wrong(self, truth: Truth) -> list[tuple[Any, ...]]:
        """Return every wrong overlap: (place, prompt, [gpu, gpu+cpu] found, the same as held)."""
        differing = []
        for i, prompt in enumerate(truth.prompts):
            matched = self.index.match(path_of(prompt, self.block_size, self.is_eagle))
            for place, rows in truth.held.items():
                found = matched[self.writers[place].slot, :2].tolist()
                if found != rows[i]:
                    differing.append((place, i, found, rows[i]))
        return differing


def path_of(prompt: dict[str, Any], block_size: int, is_eagle: bool) -> np.ndarray:
    tokens = np.array(prompt["token_ids"], np.uint32)
    infos = prompt.get("block_mm_infos")
    mm_hashes = infos and [
        [item["mm_hash"] for item in info["mm_objects"]] if info else [] for info in infos
    ]
    if mm_hashes:
        mm_hashes += [[]] * (len(tokens) // block_size - len(mm_hashes))
    return compute_block_hashes(
        tokens,
        block_size,
        lora_name=prompt.get("lora_name"),
        lookahead=int(is_eagle),
        cache_salt=prompt.get("cache_salt"),
        mm_hashes=mm_hashes,
    )


def replay_all(recording: Recording, readers: Readers) -> Iterator[Truth]:
    """Feed the whole stream; yield each truth when all steps before are read."""
    for step in recording.steps:
        if isinstance(step, Live):
            readers.live(step)
        elif isinstance(step, Replay):
            readers.answers[step.place].append(step)
        else:
            readers.settle()
            yield step


@pytest.mark.parametrize("delay", [0, 3], ids=["prompt_replay", "slow_replay"])
@pytest.mark.parametrize("name", names())
def test_overlaps_equal_the_blocks_of_the_engine(name: str, delay: int) -> None:
    recording = load(name)
    readers = Readers(recording, delay)
    compared = 0
    for truth in replay_all(recording, readers):
        assert readers.wrong(truth) == []
        readers.index.check_invariants()
        compared += len(truth.prompts) * len(truth.held)
    assert compared >= 35
    assert not any(readers.answers.values()), "a gap was not noticed"
    for feed in readers.feeds.values():
        assert (feed.lost, feed.indexed.decode_errors, bool(feed.degraded)) == (0, 0, False)


@pytest.mark.parametrize("name", [name for name in names() if name.endswith("-duplicates")])
def test_without_counting_copies_the_duplicates_would_be_wrong(name: str) -> None:
    recording = load(name)
    readers = Readers(recording, counted=False)
    assert any(readers.wrong(truth) for truth in replay_all(recording, readers))
