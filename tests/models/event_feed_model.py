"""A publisher with its log, a network in between, and a writer that only records calls.

Every batch carries a removal; the removed hash is the identity of the batch. The writer's calls
therefore show which batches were applied, how often and in which order.
"""

from collections import deque
from dataclasses import dataclass, field

import msgspec
import numpy as np

from indexer.index.keyed_roots import KeyedRoots

RANK = 3
LIFE = 2**48


def batch(*events, rank=None):
    return msgspec.msgpack.encode([1.5, list(events), rank])


def identified(life, seq, rank=None):
    """Return a batch that a `RecordingWriter` shows as (life, seq)."""
    return batch(["BlockRemoved", [life * LIFE + seq % LIFE]], rank=rank)


class NoKeys:
    """Keys of an index where no block has any; roots of events are only recorded."""

    def __init__(self):
        self.roots = KeyedRoots()

    def add_root(self, content, parts):
        return self.roots.add(content, parts)

    def find_parts(self, name):
        return None


class RecordingWriter:
    """Substitute of a SlotWriter that records the calls since the last clear."""

    def __init__(self, slot=0):
        self.slot = slot
        self.calls = []
        self.clears = 0
        self.position = self.next_position = None
        self.has_unpositioned_blocks = self.is_half_cleared = False
        self.pending_steps = None
        self.keys = NoKeys()
        self.cache_groups, self.lacks_groups, self.is_open = None, False, True

    def change_tree(self, change):
        """Change nothing, because there is no tree."""
        return 0

    def store(self, tier, parent, block_hashes, engine_hashes, *, counted=True, stream=None):
        assert block_hashes.dtype == engine_hashes.dtype == np.uint64
        assert len(block_hashes) == len(engine_hashes)
        self.calls.append(
            ("store", tier, parent, block_hashes.tolist(), engine_hashes.tolist(), counted)
        )
        return len(engine_hashes)

    store_in_one_step = store

    def store_in_steps(self, *given, **named):
        yield len(given[3])
        return self.store(*given, **named)

    def store_known(self, tier, engine_hashes, *, counted=True, stream=None):
        self.calls.append(("store_known", tier, engine_hashes.tolist(), counted))
        return len(engine_hashes)

    def remove(self, tier, engine_hashes, *, stream=None, sweep=True):
        assert engine_hashes.dtype == np.uint64
        self.calls.append(("remove", tier, engine_hashes.tolist()))
        return len(engine_hashes)

    def clear_in_steps(self, *, stream=None):
        self.calls.clear()
        self.clears += 1
        yield 1

    def settle_in_steps(self):
        if self.is_half_cleared:
            yield from self.clear_in_steps()

    def identities(self):
        """Return (life, seq) of the identified batches since the last clear, in order."""
        return [divmod(call[2][0], LIFE) for call in self.calls if call[0] == "remove"]


@dataclass
class Publisher:
    """Engine that numbers batches from 0 and keeps the last `ring_max` for replays."""

    ring_max: int
    life: int = 1
    next_seq: int = 0
    ring: deque = field(default_factory=deque)

    def publish(self):
        message = (self.next_seq, identified(self.life, self.next_seq))
        self.ring.append(message)
        if len(self.ring) > self.ring_max:
            self.ring.popleft()
        self.next_seq += 1
        return message

    def replay(self, start):
        """Return all frames of a replay, the end marker last."""
        frames = [message for message in self.ring if message[0] >= start]
        return deque([*frames, (2**64 - 1, b"")])

    def restart(self):
        self.life += 1
        self.next_seq = 0
        self.ring.clear()
