"""Tests of an index against an engine with keyed requests and a second tier.

The engine names a block by all tokens and keys up to its end, and reuses a block exactly for
requests with the same name. Events of the second tier leave out the keys.
"""

import hashlib

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from indexer.dumps.compact_reader import CompactReader, LoadLimits
from indexer.dumps.compact_writer import compact_chunks
from indexer.dumps.json_reader import JsonReader
from indexer.dumps.json_writer import document_chunks
from indexer.dumps.recovered_blocks import Adoption, DumpedPartition, adopt_blocks
from indexer.hashing.block_hashing import compute_block_hashes
from indexer.hashing.seeds import key_hash
from indexer.index.prefix_index import PrefixIndex
from tests.builders.hypothesis_profiles import explores
from tests.indexer.events.feed_scenes import a_feed, finish
from tests.indexer.events.runs import a_run, take
from tests.models.event_feed_model import RANK

SIZE = 2
IMAGES = [hashlib.sha256(name).hexdigest() for name in (b"a", b"b")]
EMBEDS = hashlib.sha256(b"embeddings").digest()
N_BLOCKS = 5


class Request:
    """Request with tokens from a small alphabet; most requests differ only in their keys."""

    def __init__(self, tail, lora, salt, images):
        self.tokens = [1] * SIZE * (N_BLOCKS - 1) + [tail] * SIZE
        self.lora, self.salt, self.images = lora, salt, images
        """images: map from block to the number of an image, or to "e" for prompt embeddings"""

    def keys(self, block):
        keys = [self.lora] if self.lora else []
        image = self.images.get(block)
        if isinstance(image, int):
            keys.append([IMAGES[image], 0])
        if block == 0 and self.salt:
            keys.append(self.salt)
        return [*keys, EMBEDS] if image == "e" else keys

    def names(self):
        found, before = [], b""
        for block in range(N_BLOCKS):
            tokens = self.tokens[block * SIZE : (block + 1) * SIZE]
            content = msgspec.msgpack.encode([before, tokens, self.keys(block)])
            before = hashlib.sha256(content).digest()
            found.append(int.from_bytes(before[-8:], "big"))
        return found

    def path(self):
        """Return the content hashes for a caller that knows the images."""
        mm_hashes = [
            []
            if image is None
            else [int(IMAGES[image][:16], 16)]
            if image != "e"
            else [EMBEDS_HASH]
            for image in map(self.images.get, range(N_BLOCKS))
        ]
        tokens = np.array(self.tokens, np.uint32)
        return compute_block_hashes(
            tokens, SIZE, lora_name=self.lora, cache_salt=self.salt, mm_hashes=mm_hashes
        )


EMBEDS_HASH = key_hash(msgspec.msgpack.encode(EMBEDS))
REQUESTS = [
    Request(tail, lora, salt, images)
    for tail in (1, 2)
    for lora in (None, "ad")
    for salt in (None, "s", "t")
    for images in ({}, {0: 0, 1: 0}, {3: 1}, {1: "e"})
]
COMMON = st.sampled_from(REQUESTS[:12] + [r for r in REQUESTS if not r.images])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["run", "run", "offload", "evict", "drop", "clear"]),
        COMMON,
        st.integers(1, N_BLOCKS),
    ),
    max_size=40,
)


class Engine:
    def __init__(self):
        self.gpu, self.cpu = set(), set()

    def act(self, kind, request, n):
        """Return the events of a step."""
        names = request.names()
        if kind == "run":
            held = self.leading(names, self.gpu)
            new = [block for block in range(held, n) if names[block] not in self.gpu]
            self.gpu.update(names[held:n])
            # Blocks behind a gap may still be cached; each run of missing blocks is an event.
            return [self.stored(request, block, "GPU") for block in new]
        if kind == "offload":
            new = [block for block in range(n) if names[block] in self.gpu - self.cpu]
            self.cpu.update(names[block] for block in new)
            return [self.stored(request, block, "CPU") for block in new]
        if kind == "clear" and n == 1:
            self.gpu.clear()
            self.cpu.clear()
            return [{"type": "AllBlocksCleared"}]
        tier, medium = (self.gpu, "GPU") if kind == "evict" else (self.cpu, "CPU")
        gone = [name for name in names[n - 1 :] if name in tier]
        tier.difference_update(gone)
        return [{"type": "BlockRemoved", "block_hashes": gone, "medium": medium}] if gone else []

    @staticmethod
    def stored(request, block, medium):
        names = request.names()
        is_described = medium == "GPU"
        return {
            "type": "BlockStored",
            "block_hashes": [names[block]],
            "parent_block_hash": names[block - 1] if block else None,
            "token_ids": request.tokens[block * SIZE : (block + 1) * SIZE],
            "block_size": SIZE,
            "lora_id": 1 if request.lora and is_described else None,
            "medium": medium,
            "lora_name": request.lora if is_described else None,
            "extra_keys": [request.keys(block) or None] if is_described else None,
        }

    @staticmethod
    def leading(names, tier):
        count = 0
        while count < len(names) and names[count] in tier:
            count += 1
        return count

    def reusable(self, request):
        """Return the number of reusable blocks on the GPU, and including the second tier behind."""
        names = request.names()
        gpu = self.leading(names, self.gpu)
        return [gpu, gpu + self.leading(names[gpu:], self.cpu)]


class Side:
    """Index that follows the engine."""

    def __init__(self):
        self.index = PrefixIndex(1000)
        self.writer = self.index.open_slot()
        self._open_feed()

    def _open_feed(self):
        self._feed = a_feed(writers={RANK: self.writer}, replay=False, block_size=SIZE)
        self._feed.begin(0.0, nothing_older_comes=True)

    def send(self, messages, in_runs):
        if in_runs:
            take(self._feed, a_run(messages))
        for seq, payload in () if in_runs else messages:
            finish(self._feed, self._feed.receive(seq, payload, 0.0))
        self.index.check_invariants()

    def recover(self, form):
        """Return a side with the same state in another process."""
        held = DumpedPartition("m:t", SIZE, {(1, RANK): self.writer.slot}, self.index.snapshot())
        reader = (
            CompactReader(LoadLimits(1000)) if form == "compact" else JsonReader(LoadLimits(1000))
        )
        chunks = compact_chunks([held])
        if form == "json":
            chunks = [b'{"m:t":', *document_chunks([held]), b"}"]
        for chunk in chunks:
            reader.feed(chunk)
        reader.finish()
        other = Side()
        if (1, RANK) in reader.partitions[0].ranks:  # otherwise the slot was empty
            adopt_blocks([Adoption(reader.partitions[0], (1, RANK), other.writer)])
        other._open_feed()
        return other

    def count_matches(self, request):
        return self.index.match(request.path())[self.writer.slot, :2].tolist()


def encode_steps(steps):
    """Return the engine after the steps, and its messages."""
    engine = Engine()
    batches = [msgspec.msgpack.encode([0.0, engine.act(*step), None]) for step in steps]
    return engine, list(enumerate(batches))


@explores(150)
@given(STEPS, st.booleans())
def test_every_request_finds_the_blocks_that_the_engine_would_reuse(steps, in_runs):
    engine, messages = encode_steps(steps)
    side = Side()
    side.send(messages, in_runs)
    for request in REQUESTS:
        assert side.count_matches(request) == engine.reusable(request)


@explores(100)
@given(STEPS, st.integers(0, 40), st.sampled_from(["compact", "json"]), st.booleans())
def test_a_recovery_in_the_middle_changes_nothing(steps, cut, form, in_runs):
    engine, messages = encode_steps(steps)
    side = Side()
    side.send(messages[:cut], in_runs)
    side = side.recover(form)
    side.send(messages[cut:], in_runs)
    for request in REQUESTS:
        assert side.count_matches(request) == engine.reusable(request)


@explores(100)
@given(STEPS, st.integers(1, 10), st.booleans())
def test_after_lost_batches_no_request_finds_blocks_that_were_never_there(steps, missed, in_runs):
    # A lost batch may be a removal, so only steps that add blocks count here. A stream without
    # any salt or image so far may have neither.
    steps = [step for step in steps if step[0] in ("run", "offload")]
    steps.insert(missed, ("run", Request(3, None, "s", {0: 1}), N_BLOCKS))
    engine, messages = encode_steps(steps)
    side = Side()
    side.send([(i, payload) for i, (_, payload) in enumerate(messages[missed:])], in_runs)
    for request in REQUESTS:
        found, reusable = side.count_matches(request), engine.reusable(request)
        assert found[0] <= reusable[0]
        assert found[1] <= reusable[1]
