"""Tests of blocks with keys: only requests with the same keys find a block."""

import hashlib

import msgspec
import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

from indexer.dumps.compact_reader import CompactReader, LoadLimits
from indexer.dumps.compact_writer import compact_chunks
from indexer.dumps.json_reader import JsonReader
from indexer.dumps.json_writer import document_chunks
from indexer.dumps.recovered_blocks import Adoption, DumpedPartition, adopt_blocks
from indexer.hashing.block_hashing import compute_block_hashes
from indexer.index import block_tree
from indexer.index.prefix_index import PrefixIndex
from tests.indexer.events.feed_scenes import a_feed, finish
from tests.indexer.events.runs import a_run, take
from tests.models.event_feed_model import RANK

SIZE = 4
PROMPT = list(range(100, 124))
SHA = hashlib.sha256(b"image").hexdigest()
MM = int(SHA[:16], 16)
EMBEDS = hashlib.sha256(b"embeddings").digest()


def stored(first, n_blocks, **fields):
    """Return vLLM's event of `n_blocks` blocks of the prompt, from block `first` on."""
    tokens = PROMPT[first * SIZE : (first + n_blocks) * SIZE]
    return {
        "type": "BlockStored",
        "block_hashes": list(range(1000 + first, 1000 + first + n_blocks)),
        "parent_block_hash": 999 + first if first else None,
        "token_ids": tokens,
        "block_size": SIZE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    } | fields


def removed(first, n_blocks, medium="GPU"):
    names = list(range(1000 + first, 1000 + first + n_blocks))
    return {"type": "BlockRemoved", "block_hashes": names, "medium": medium}


class Rank:
    """Index with the feed of one rank, and with a second slot."""

    def __init__(self, *, in_runs=False, **source):
        self.index = PrefixIndex(1000)
        self.writer = self.index.open_slot()
        self.feed = a_feed(writers={RANK: self.writer}, replay=False, **source)
        self.feed.begin(0.0, nothing_older_comes=True)
        self._in_runs = in_runs
        self.seq = 0

    def send(self, *batches):
        """Receive batches; each batch is an event or a list of events."""
        messages = []
        for batch in batches:
            events = batch if isinstance(batch, list) else [batch]
            messages.append((self.seq, msgspec.msgpack.encode([1.0, events, None])))
            self.seq += 1
        if self._in_runs:
            take(self.feed, a_run(messages))
        for seq, payload in () if self._in_runs else messages:
            finish(self.feed, self.feed.receive(seq, payload, 0.0))
        self.index.check_invariants()
        return self

    def count_matches(self, **prompt):
        """Return the number of matched blocks of the prompt: [GPU, GPU and CPU]."""
        lookahead = prompt.pop("lookahead", int(prompt.pop("is_eagle", False)))
        tokens = np.array(prompt.pop("tokens", PROMPT), np.uint32)
        path = compute_block_hashes(tokens, SIZE, lookahead=lookahead, **prompt)
        return self.index.match(path)[self.writer.slot, :2].tolist()

    @property
    def drops(self):
        return dict(self.feed.indexed.applier.drops.counts)


# --- adapters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_runs", [False, True])
def test_an_adapter_without_a_name_is_not_the_base_model(in_runs):
    rank = Rank(in_runs=in_runs).send(stored(0, 2, lora_id=7), stored(2, 2, lora_id=7))
    assert rank.count_matches() == [0, 0]
    assert rank.count_matches(lora_name="lora_id:7") == [4, 4]
    assert rank.count_matches(lora_name="lora_id:8") == [0, 0]


def test_number_0_is_the_base_model_and_a_name_counts_more_than_a_number():
    assert Rank().send(stored(0, 2, lora_id=0)).count_matches() == [2, 2]
    rank = Rank().send(stored(0, 2, lora_id=7, lora_name="sql"))
    assert (rank.count_matches(), rank.count_matches(lora_name="sql")) == ([0, 0], [2, 2])


@pytest.mark.parametrize("lora_id", ["abc", -1, 1.5, [1], True])
def test_an_odd_adapter_is_not_the_base_model(lora_id):
    assert Rank().send(stored(0, 2, lora_id=lora_id)).count_matches() == [0, 0]


# --- keys of a block -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys", [EMBEDS, 7, 1.5, "", {"a": 1}, [SHA], ["id", 0, 1], [b"x", 0], True, []]
)
@pytest.mark.parametrize("first", [0, 1])
def test_a_key_that_is_not_understood_is_never_plain_text(keys, first):
    rank = Rank().send(stored(0, 1), stored(1, 3, extra_keys=[[keys], None, None]))
    assert rank.count_matches() == [1, 1]
    rank = Rank().send(stored(0, 4, extra_keys=[None, [keys], None, None]))
    assert rank.count_matches() == [1, 1]
    rank = Rank().send(stored(0, 4, extra_keys=[[keys], None, None, None]))
    assert rank.count_matches() == [0, 0]


def test_prompt_embeddings_match_only_the_same_embeddings():
    rank = Rank().send(stored(0, 2, extra_keys=[[EMBEDS], [EMBEDS]]))
    assert rank.count_matches() == [0, 0]
    other = hashlib.sha256(b"others").digest()
    rank.send(stored(0, 1, extra_keys=[[other]], block_hashes=[5000]))
    assert rank.index.stats().blocks == 3


@pytest.mark.parametrize("form", [lambda key: key, lambda key: [key, 3]], ids=["bare", "pair"])
def test_an_image_of_an_adapter_is_found_by_its_own_hash(form):
    keys = [["sql", form(f"sql:{SHA}")], ["sql", form(f"sql:{SHA}")], ["sql"]]
    rank = Rank().send(stored(0, 3, lora_id=1, lora_name="sql", extra_keys=keys))
    assert rank.count_matches(lora_name="sql", mm_hashes=[[MM], [MM]]) == [3, 3]
    assert (
        rank.count_matches(lora_name="sql") == rank.count_matches(mm_hashes=[[MM], [MM]]) == [0, 0]
    )
    rank = Rank().send(stored(0, 1, extra_keys=[["sql", form(f"sql:{SHA}")]]))
    assert rank.count_matches(mm_hashes=[[MM]]) == rank.count_matches() == [0, 0]


def test_an_image_with_the_name_of_its_user_in_the_bare_form():
    name = "123e4567-e89b-12d3-a456-426614174000"
    mm = xxh3_64_intdigest(name.encode())
    rank = Rank().send(stored(0, 3, extra_keys=[[name], [name], None]))
    assert rank.count_matches(mm_hashes=[[mm], [mm]]) == [3, 3]
    # In the first block alone the text may be a salt: only prompts with this salt match.
    rank = Rank().send(stored(0, 3, extra_keys=[[name], None, None]))
    assert (
        rank.count_matches()
        == rank.count_matches(cache_salt="tenant-a")
        == rank.count_matches(mm_hashes=[[mm]])
        == [0, 0]
    )
    assert rank.count_matches(cache_salt=name) == [3, 3]
    # Behind the first block a bare text is an image.
    rank = Rank().send(stored(0, 1), stored(1, 2, extra_keys=[[name], None]))
    assert (rank.count_matches(), rank.count_matches(mm_hashes=[[], [mm]])) == ([1, 1], [3, 3])


def test_image_and_salt_of_the_first_block_are_distinguished():
    rank = Rank().send(stored(0, 2, extra_keys=[[["uuid", 0], "tenant-a"], [["uuid", -4]]]))
    mm = xxh3_64_intdigest(b"uuid")
    assert rank.count_matches(cache_salt="tenant-a", mm_hashes=[[mm], [mm]]) == [2, 2]
    assert (
        rank.count_matches(cache_salt="tenant-a")
        == rank.count_matches(mm_hashes=[[mm], [mm]])
        == [0, 0]
    )
    rank = Rank().send(stored(0, 2, extra_keys=[["uuid", "tenant-a"], ["uuid"]]))
    assert rank.count_matches(cache_salt="tenant-a", mm_hashes=[[mm], [mm]]) == [2, 2]


def test_images_of_tensorrt_llm():
    key = {"type": "mm_key", "hash": SHA, "start_offset": 0}
    rank = Rank().send(stored(0, 3, mm_keys=[[key], [key], []]))
    assert (rank.count_matches(), rank.count_matches(mm_hashes=[[MM], [MM]])) == ([0, 0], [3, 3])
    uuid = key | {"hash": "uuid"}
    rank = Rank().send(stored(0, 2, mm_keys=[None, [uuid]]))
    assert rank.count_matches() == [1, 1]
    assert rank.count_matches(mm_hashes=[[], [xxh3_64_intdigest(b"uuid")]]) == [2, 2]
    for odd in ([[{"type": "other"}]], [["x"]], [None, None, [key]], [5]):
        assert Rank().send(stored(0, 2, mm_keys=odd)).count_matches() == [0, 0]


def test_keys_without_explicit_hashes_count_beside_explicit_ones():
    infos = [{"mm_objects": [{"mm_hash": 5}]}, None]
    rank = Rank().send(stored(0, 2, block_mm_infos=infos, extra_keys=[[SHA, EMBEDS], [SHA]]))
    assert rank.count_matches(mm_hashes=[[5]]) == rank.count_matches() == [0, 0]
    rank = Rank().send(stored(0, 2, block_mm_infos=infos, extra_keys=[[[SHA, 0]], [[SHA, 4]]]))
    assert rank.count_matches(mm_hashes=[[5]]) == [1, 1]
    assert rank.count_matches(mm_hashes=[[5], [MM]]) == [2, 2]


# --- unknown fields ------------------------------------------------------------------------------


@pytest.mark.parametrize("in_runs", [False, True])
def test_unknown_fields_are_counted_by_name(in_runs):
    rank = Rank(in_runs=in_runs)
    rank.send(stored(0, 1, flavour="x"), removed(0, 1) | {"flavour": 1, "why": None}, stored(0, 2))
    rank.send(["AllBlocksCleared", "now"])
    rank.send([["AllBlocksCleared", "now"]])
    assert rank.feed.indexed.unknown_fields == {"flavour": 2, "why": 1, "[1]": 1}
    assert rank.send(stored(0, 2, flavour={"a": [1]})).count_matches() == [2, 2]


@pytest.mark.parametrize("name", ["adapter_version", "mm_state", "tenant", "prompt_embeds", "key"])
def test_an_unknown_field_that_may_be_a_key_is_one(name):
    assert Rank().send(stored(0, 2, **{name: "x"})).count_matches() == [0, 0]
    assert Rank().send(stored(0, 2, **{name: None})).count_matches() == [2, 2]


def test_names_of_unknown_fields_are_bounded():
    rank = Rank()
    for i in range(50):
        rank.send(stored(0, 1, **{f"field{i}{'x' * 100}": 1, "field0" + "x" * 100: 2}))
    names = rank.feed.indexed.unknown_fields
    assert len(names) == 33
    assert names["(others)"] == 50 - 32
    assert max(map(len, names)) == 64


# --- hashes without a place ----------------------------------------------------------------------


@pytest.mark.parametrize("in_runs", [False, True])
@pytest.mark.parametrize("kind", [None, "full_attention"])
def test_fewer_hashes_than_blocks_have_no_place(in_runs, kind):
    rank = Rank(in_runs=in_runs).send(
        stored(0, 1, kv_cache_spec_kind=kind),
        stored(1, 3, kv_cache_spec_kind=kind, block_hashes=[1003]),
        stored(1, 1, kv_cache_spec_kind=kind, block_hashes=[]),
    )
    assert (rank.count_matches(), rank.drops) == ([1, 1], {"ambiguous_hashes": 2})
    assert "fill more blocks" in rank.feed.indexed.applier.drops.last_skipped
    surplus = stored(1, 2, kv_cache_spec_kind=kind, token_ids=[*PROMPT[4:12], 1, 2, 3])
    assert rank.send(surplus).count_matches() == [3, 3]


@pytest.mark.parametrize("is_eagle", [False, True])
def test_pairs_and_one_more_token_are_no_surplus(is_eagle):
    pairs = [[PROMPT[i], PROMPT[i + 1]] for i in range(8)]
    rank = Rank(is_eagle=is_eagle).send(stored(0, 2, token_ids=pairs))
    assert (rank.count_matches(is_eagle=True), rank.drops) == ([2, 2], {})
    rank = Rank(is_eagle=True, block_size=1)
    rank.send(stored(0, 3, token_ids=PROMPT[:4], block_size=1))
    assert rank.drops == {}


# --- lookahead -----------------------------------------------------------------------------------


def ahead(first, n_blocks, length=1, **fields):
    ends = [(first + i + 1) * SIZE for i in range(n_blocks)]
    return stored(
        first, n_blocks, lookahead_token_ids=[PROMPT[end : end + length] for end in ends], **fields
    )


def test_a_block_with_lookahead_is_hashed_with_the_token_behind():
    rank = Rank(is_eagle=True).send(ahead(0, 2), ahead(2, 2))
    assert rank.count_matches(is_eagle=True) == [4, 4]
    other = [*PROMPT[:16], 7]
    assert rank.count_matches(is_eagle=True, tokens=other) == [3, 3]
    applier = rank.feed.indexed.applier
    assert (applier.lookahead_events, applier.plain_eagle_events) == (0, 0)


def test_lookahead_of_several_tokens_is_part_of_the_block():
    """The index knows the number of following tokens with which prompts are hashed."""
    rank = Rank(is_eagle=True).send(ahead(0, 2, 3))
    path = np.array(
        [xxh3_64_intdigest(np.array(PROMPT[i : i + 7], "<u4").tobytes(), 1337) for i in (0, 4)],
        np.uint64,
    )
    assert rank.index.match(path)[0, 0] == 2
    assert rank.count_matches(lookahead=rank.index.lookahead) == [2, 2]
    assert rank.count_matches(is_eagle=True) == [0, 0]
    assert rank.feed.indexed.applier.lookahead_events == 0


@pytest.mark.parametrize("in_runs", [False, True])
def test_events_that_contradict_the_registration_are_counted(in_runs):
    rank = Rank(in_runs=in_runs).send(ahead(0, 2))
    assert (rank.count_matches(), rank.feed.indexed.applier.lookahead_events) == ([2, 2], 1)
    rank = Rank(in_runs=in_runs, is_eagle=True).send(stored(0, 2), stored(2, 1), stored(3, 1))
    assert (rank.count_matches(is_eagle=True), rank.feed.indexed.applier.plain_eagle_events) == (
        [0, 0],
        3,
    )


@pytest.mark.parametrize("value", [[[1]], 5, [[1], [1, 2]], [[], []], [[1], [-1]], [[1], ["x"]]])
def test_malformed_lookahead_spoils_its_event(value):
    rank = Rank().send(stored(0, 2, lookahead_token_ids=value))
    assert (rank.feed.indexed.decode_errors, rank.count_matches()) == (1, [0, 0])


# --- salts ---------------------------------------------------------------------------------------

FIRST_SALTED = [
    {"extra_keys": [["tenant-a"], None]},
    {"extra_keys": [["dynamo-cache-salt:tenant-a"], None]},
    {"cache_salt": "tenant-a"},
    {"cache_salt": "dynamo-cache-salt:tenant-a"},
]


@pytest.mark.parametrize("in_runs", [False, True])
@pytest.mark.parametrize("salted", FIRST_SALTED)
@pytest.mark.parametrize("lora", [{}, {"lora_id": 3, "lora_name": "sql"}])
def test_later_events_continue_the_salt_of_their_sequence(in_runs, salted, lora):
    named = {"lora_name": "sql"} if lora else {}
    if lora and "extra_keys" in salted:
        salted = {"extra_keys": [["sql", *salted["extra_keys"][0]], ["sql"]]}
    rank = Rank(in_runs=in_runs)
    rank.send(stored(0, 2, **lora, block_hashes=[1, 2]))
    rank.send(stored(0, 2, **lora, **salted), stored(2, 1, **lora), stored(3, 2, **lora))
    rank.send(stored(2, 2, **lora, block_hashes=[3, 4], parent_block_hash=2))
    assert rank.count_matches(cache_salt="tenant-a", **named) == [5, 5]
    assert rank.count_matches(**named) == [4, 4]
    assert rank.count_matches(cache_salt="tenant-b", **named) == [0, 0]
    if lora:
        assert rank.count_matches(cache_salt="tenant-a") == rank.count_matches() == [0, 0]


def test_a_salt_of_64_digits_is_a_salt():
    rank = Rank().send(stored(0, 2, extra_keys=[[SHA], None]), stored(2, 1))
    assert rank.count_matches(cache_salt=SHA) == [3, 3]
    assert rank.count_matches() == rank.count_matches(mm_hashes=[[MM]]) == [0, 0]


def test_a_salt_that_every_event_repeats():
    rank = Rank().send(*(stored(i, 1, cache_salt="tenant-a") for i in range(4)))
    assert (rank.count_matches(cache_salt="tenant-a"), rank.count_matches()) == ([4, 4], [0, 0])


@pytest.mark.parametrize("in_runs", [True, False])
def test_a_salt_that_is_an_adapters_name_is_another_identity(in_runs):
    adapter, both = {"lora_name": "sql"}, {"lora_name": "sql", "cache_salt": "sql"}
    asked = ({}, {"cache_salt": "sql"}, adapter, both)
    for first, found in (
        ({"extra_keys": [["sql"], None]}, 1),
        (adapter | {"extra_keys": [["sql"], ["sql"]]}, 2),
        (adapter | {"extra_keys": [["sql", "sql"], ["sql"]]}, 3),
    ):
        rank = Rank(in_runs=in_runs).send(stored(0, 2, **first))
        assert [rank.count_matches(**each)[0] for each in asked] == [
            2 * (i == found) for i in range(4)
        ]


def test_a_full_table_of_salts_refuses_new_ones_and_keeps_the_others(monkeypatch):
    monkeypatch.setattr(block_tree, "ROOTS_MAX", 16)
    rank = Rank()
    for i in range(16):
        rank.send(stored(0, 1, cache_salt=f"t{i}", block_hashes=[i]))
    rank.send(stored(0, 1, cache_salt="late", block_hashes=[500]))
    assert rank.drops == {"salts": 1}
    assert (rank.count_matches(cache_salt="late"), rank.count_matches()) == ([0, 0], [0, 0])
    rank.send(stored(1, 1, parent_block_hash=3))
    assert rank.count_matches(cache_salt="t3") == [2, 2]
    rank.send({"type": "BlockRemoved", "block_hashes": [9, 10]})
    for i in range(2):  # the places of removed blocks are free again
        rank.send(stored(0, 1, cache_salt=f"new{i}", block_hashes=[600 + i]))
    assert rank.count_matches(cache_salt="new0") == rank.count_matches(cache_salt="new1") == [1, 1]
    assert rank.send(stored(2, 1, parent_block_hash=1001)).count_matches(cache_salt="t3") == [3, 3]


def carried_over(rank, form):
    """Return a rank of another process with the blocks of this rank."""
    held = DumpedPartition("m:t", SIZE, {(1, RANK): rank.writer.slot}, rank.index.snapshot())
    if form == "compact":
        reader = CompactReader(LoadLimits(1000))
        for chunk in compact_chunks([held]):
            reader.feed(chunk)
        assert not reader.has_older_salts
    else:
        reader = JsonReader(LoadLimits(1000))
        reader.feed(b'{"m:t":' + b"".join(document_chunks([held])) + b"}")
    reader.finish()
    other = Rank()
    adopt_blocks([Adoption(reader.partitions[0], (1, RANK), other.writer)])
    other.feed = a_feed(writers={RANK: other.writer}, replay=False)
    other.feed.begin(0.0, nothing_older_comes=True)
    other.seq = rank.seq
    return other


@pytest.mark.parametrize("form", ["compact", "json"])
def test_salts_continue_after_a_recovery(form):
    rank = Rank().send(stored(0, 2, cache_salt="tenant-a"), stored(0, 2, block_hashes=[1, 2]))
    other = carried_over(rank, form).send(
        stored(2, 2), stored(2, 1, block_hashes=[3], parent_block_hash=2)
    )
    assert other.count_matches(cache_salt="tenant-a") == [4, 4]
    other = carried_over(other, form).send(stored(4, 1))
    assert (other.count_matches(cache_salt="tenant-a"), other.count_matches()) == ([5, 5], [3, 3])


@pytest.mark.parametrize("form", ["compact", "json"])
def test_a_recovery_remembers_that_keys_existed(form):
    rank = Rank().send(stored(0, 2, extra_keys=[[[SHA, 0]], None]))
    other = carried_over(rank, form).send(stored(3, 1, medium="CPU", block_hashes=[77]))
    assert other.drops == {"tier_identity": 1}
    plain = carried_over(Rank().send(stored(0, 2)), form)
    assert plain.writer.keys.roots.has_keys is False


# --- lower tiers ---------------------------------------------------------------------------------

KEYED = [
    ({"extra_keys": [["tenant-a"], None]}, {"cache_salt": "tenant-a"}),
    ({"lora_id": 1, "lora_name": "sql"}, {"lora_name": "sql"}),
    ({"extra_keys": [[[SHA, 0]], [[SHA, 4]]]}, {"mm_hashes": [[MM], [MM]]}),
    ({"lora_id": 7}, {"lora_name": "lora_id:7"}),
]


def cpu(first, n_blocks, **fields):
    """Return an event of a connector that leaves out all keys."""
    return stored(first, n_blocks, medium="CPU", **fields)


@pytest.mark.parametrize("in_runs", [False, True])
@pytest.mark.parametrize(("fields", "prompt"), KEYED)
def test_blocks_of_lower_tiers_keep_the_identity_of_their_names(in_runs, fields, prompt):
    rank = Rank(in_runs=in_runs).send(stored(0, 2, **fields))
    rank.send(cpu(0, 1), cpu(1, 1), removed(0, 2))
    assert (rank.count_matches(), rank.count_matches(**prompt)) == ([0, 0], [0, 2])
    rank.send(removed(0, 2, "CPU"))
    assert rank.count_matches(**prompt) == [0, 0]


@pytest.mark.parametrize("in_runs", [False, True])
def test_unknown_names_of_lower_tiers_continue_their_parent(in_runs):
    rank = Rank(in_runs=in_runs).send(
        stored(0, 2, cache_salt="tenant-a"),
        stored(0, 1, lora_name="sql", block_hashes=[1]),
        stored(0, 1, block_hashes=[2]),
    )
    rank.send(cpu(1, 3))
    rank.send(cpu(1, 1, block_hashes=[11], parent_block_hash=1))
    rank.send(cpu(1, 1, block_hashes=[12], parent_block_hash=2))
    assert rank.count_matches(cache_salt="tenant-a") == [2, 4]
    assert rank.count_matches(lora_name="sql") == rank.count_matches() == [1, 2]
    assert rank.drops == {}


@pytest.mark.parametrize("in_runs", [False, True])
@pytest.mark.parametrize(("fields", "prompt"), KEYED)
def test_unknown_sequences_of_lower_tiers_are_dropped_once_there_are_keys(in_runs, fields, prompt):
    rank = Rank(in_runs=in_runs).send(cpu(0, 2, block_hashes=[1, 2]))
    assert rank.count_matches() == [0, 2]  # no event has shown a key so far
    rank.send({"type": "BlockRemoved", "block_hashes": [1, 2], "medium": "CPU"})
    rank.send(stored(0, 2, **fields), removed(0, 2), cpu(0, 2), cpu(2, 1))
    assert (rank.count_matches(), rank.count_matches(**prompt)) == ([0, 0], [0, 0])
    assert rank.drops == {"tier_identity": 2}
    assert "leaves adapter" in rank.feed.indexed.applier.drops.last_skipped


@pytest.mark.parametrize("in_runs", [False, True])
def test_after_missing_batches_unknown_sequences_of_lower_tiers_are_dropped(in_runs):
    """The missing batches may include the batch with the keys."""
    rank = Rank(in_runs=in_runs).send(stored(0, 1), cpu(0, 1))
    rank.seq += 1
    rank.send(stored(1, 1), cpu(0, 2, block_hashes=[1, 2]), cpu(1, 1), cpu(2, 1))
    assert (rank.count_matches(), rank.drops) == ([2, 3], {"tier_identity": 1})


def test_unknown_names_below_images_are_dropped():
    rank = Rank().send(stored(0, 2), stored(2, 1, extra_keys=[[[SHA, 0]]], block_hashes=[9]))
    rank.send(cpu(1, 1), cpu(2, 1))
    assert (rank.count_matches(), rank.drops) == ([2, 2], {"tier_identity": 1})


@pytest.mark.parametrize("in_runs", [False, True])
def test_without_fields_for_keys_a_lower_tier_has_no_keys(in_runs):
    """SGLang adds a field for salt or adapter only where a salt or adapter exists."""
    plain = {name: value for name, value in cpu(0, 2).items() if name != "lora_name"}
    array = ["BlockStored", [1002], 1001, PROMPT[8:12], SIZE, None, "CPU"]
    rank = Rank(in_runs=in_runs).send(stored(0, 1, cache_salt="tenant-a", block_hashes=[1]))
    rank.send(plain, [array])
    assert (rank.count_matches(), rank.drops) == ([0, 3], {})


def test_keys_of_a_lower_tier_count():
    rank = Rank().send(stored(0, 1, cache_salt="tenant-a", medium="CPU"), cpu(1, 1))
    assert (rank.count_matches(cache_salt="tenant-a"), rank.count_matches()) == ([0, 2], [0, 0])


def test_a_large_event_of_a_lower_tier(monkeypatch):
    monkeypatch.setattr("indexer.events.batch_applier.STEP_BLOCKS_MAX", 2)
    rank = Rank().send(stored(0, 3, cache_salt="tenant-a"), cpu(0, 6), removed(0, 3))
    assert (rank.count_matches(cache_salt="tenant-a"), rank.count_matches()) == ([0, 6], [0, 0])
