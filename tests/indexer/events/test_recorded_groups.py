"""Tests with recorded cache groups of vLLM: the index returns the engine's reusable tokens."""

import json
import lzma
from collections import Counter
from functools import partial
from pathlib import Path

import msgspec
import pytest

from indexer.dumps import compact_writer
from indexer.dumps.compact_head import DumpError
from indexer.dumps.compact_reader import CompactReader, LoadLimits
from indexer.dumps.compact_writer import compact_chunks
from indexer.dumps.json_reader import JsonReader
from indexer.dumps.json_writer import document_chunks
from indexer.index.header_kernels import PLANES
from indexer.index.kv_cache_facts import KvCacheFacts
from tests.indexer.events.grouped_rank import GroupedRank
from tests.models.recorded_cache import read_event

DIRECTORY = Path(__file__).parents[2] / "data" / "hybrid"
LAYOUTS = sorted(path.name.removesuffix(".jsonl.xz") for path in DIRECTORY.glob("*.jsonl.xz"))
BY_NAMES = {"full_mamba_unit16"}
"""Layouts with ends inside blocks, which are certain only with the engine's names."""


def rows_of(layout):
    """Yield the rows of a recording; prompts have all their tokens."""
    prompts = []
    with lzma.open(DIRECTORY / f"{layout}.jsonl.xz", "rt") as lines:
        for row in map(json.loads, lines):
            if "reused" in row:
                shared = prompts[row["like"]][: row["keep"]] if "like" in row else []
                row["tokens"] = shared + row["tokens"]
                prompts.append(row["tokens"])
            yield row


def rank_of(about, index=None, *, knows_seed=True, knows_drop=True):
    facts = dict(about["facts"])
    if not knows_drop:
        facts["may_drop"] = facts.pop("eagle_drop")
    block_size = facts.pop("block_size")
    if not knows_seed:
        facts["hash"] = {"seed": "another seed than the engine's"}
    is_eagle = about["ahead"] > 0
    return GroupedRank(block_size, msgspec.convert(facts, KvCacheFacts), index, is_eagle=is_eagle)


def holdings_after(events, held):
    """Count the copies of (group, name) that the engine holds."""
    for event in events:
        kind, names, group = read_event(event)
        if kind == "AllBlocksCleared":
            held.clear()
            continue
        sign = 1 if kind == "BlockStored" else -1
        for name in names:
            held[group, name] += sign


def removals_of(held):
    """Return an event for each group, with a name for each copy."""
    groups = {}
    for (group, name), copies in sorted(held.items()):
        groups.setdefault(group, []).extend([name] * copies)
    return [
        {"type": "BlockRemoved", "block_hashes": names, "group_idx": group}
        for group, names in groups.items()
    ]


class ReplayedRank:
    """Rank with a recording applied, the engine's holdings and the prompts' answers."""

    def __init__(self, layout, **options):
        rows = rows_of(layout)
        self.rank = rank_of(next(rows), **options)
        self.rows = list(rows)
        self.held = Counter()
        self.answers = []

    def play(self, rows):
        for row in rows:
            if "batch" in row:
                events = row["batch"][1]
                self.rank.apply_batch(events)
                holdings_after(events, self.held)
            else:
                answer = self.rank.answer(row["tokens"], row.get("lora"), row.get("salt"))
                self.answers.append((*answer, row["reused"]))
        self.rank.index.check_invariants()

    def remove_everything(self):
        self.rank.apply_batch(removals_of(self.held))
        self.held.clear()


def assert_empty(rank):
    rank.index.check_invariants()
    stats = rank.index.stats()
    assert (stats.blocks, stats.memberships, stats.holder_sets) == (0, 0, 0)
    assert (stats.records, stats.orphans) == (0, 0)
    assert not rank.groups.waiting


@pytest.mark.parametrize("layout", LAYOUTS)
def test_answers_are_the_engines_own(layout):
    replayed = ReplayedRank(layout)
    replayed.play(replayed.rows)
    assert len(replayed.answers) >= 60
    assert [got for got in replayed.answers if got != (got[2], False, got[2])] == []
    replayed.remove_everything()
    assert_empty(replayed.rank)


@pytest.mark.parametrize("layout", ["full_swa", "full_mamba_unit16", "v4_small"])
def test_blocks_of_all_groups_fill_the_memory_of_the_engine(layout):
    """The groups share a pool, in which the dense group may have only a small part."""
    about, *rows = rows_of(layout)
    rank, pool, most = rank_of(about), about["blocks"], 0
    tree, slot = rank.index._tree, rank.writer.slot
    for row in (row for row in rows if "batch" in row):
        rank.apply_batch(row["batch"][1])
        most = max(most, tree.count_tier_blocks(slot, 0) + tree.count_lane_blocks(slot))
    assert 0.7 * pool < most < pool


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_names_answers_are_exact_or_upper_bounds(layout):
    replayed = ReplayedRank(layout, knows_seed=False)
    replayed.play(replayed.rows)
    wrong = [(n, bound, real) for n, bound, real in replayed.answers if not bound and n != real]
    below = [(n, real) for n, bound, real in replayed.answers if bound and n < real]
    assert (wrong, below) == ([], [])
    if layout not in BY_NAMES:
        assert not any(bound for _, bound, _ in replayed.answers)
    replayed.remove_everything()
    assert_empty(replayed.rank)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_clear_midway_empties_the_index_and_the_rest_answers_bounded_or_exact(layout):
    """The engine did not clear, so later events do not explain the earlier blocks."""
    replayed = ReplayedRank(layout)
    middle = len(replayed.rows) // 2
    replayed.play(replayed.rows[:middle])
    replayed.rank.apply_batch([{"type": "AllBlocksCleared"}])
    assert_empty(replayed.rank)
    before = len(replayed.answers)
    replayed.play(replayed.rows[middle:])
    # Only dense blocks that were announced anew can match, so no answer is above.
    above = [(n, real) for n, bound, real in replayed.answers[before:] if not bound and n > real]
    assert above == []
    replayed.remove_everything()
    assert_empty(replayed.rank)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_replay_after_a_clear_answers_as_the_first_time(layout):
    replayed = ReplayedRank(layout)
    replayed.play(replayed.rows)
    replayed.rank.apply_batch([{"type": "AllBlocksCleared"}])
    first, replayed.answers = replayed.answers, []
    replayed.play(replayed.rows)
    assert replayed.answers == first


def read_compact(partition):
    reader = CompactReader(LoadLimits(100_000))
    for chunk in compact_chunks([partition]):
        reader.feed(chunk)
    reader.finish()
    return reader.partitions[0]


def read_json(partition, without=()):
    """Read a dump without some of its members."""
    document = json.loads(b"".join(document_chunks([partition])))
    for member in without:
        document.pop(member, None)
    reader = JsonReader(LoadLimits(100_000))
    reader.feed(json.dumps({"m:t": document}).encode())
    reader.finish()
    assert reader.bad_entries == 0
    return reader.partitions[0]


def play_with_restarts(replayed, read_again):
    for start in range(0, len(replayed.rows), 23):
        replayed.play(replayed.rows[start : start + 23])
        if replayed.rank.index.stats().blocks:
            replayed.rank.restart(read_again)
            replayed.rank.index.check_invariants()


@pytest.mark.parametrize("read_again", [read_compact, read_json])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_restarts_from_dumps_change_no_answer(layout, read_again):
    replayed = ReplayedRank(layout)
    play_with_restarts(replayed, read_again)
    assert [got for got in replayed.answers if got != (got[2], False, got[2])] == []
    replayed.remove_everything()
    assert_empty(replayed.rank)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_after_a_dump_without_lanes_answers_are_exact_or_upper_bounds(layout):
    replayed = ReplayedRank(layout)
    play_with_restarts(replayed, partial(read_json, without=["lanes"]))
    wrong = [(n, bound, real) for n, bound, real in replayed.answers if not bound and n != real]
    below = [(n, real) for n, bound, real in replayed.answers if bound and n < real]
    assert (wrong, below) == ([], [])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_after_a_dump_without_groups_answers_are_bounds_once_the_engine_has_spoken(layout):
    """Dynamo and older versions of this service do not know other groups."""
    replayed = ReplayedRank(layout)
    middle = len(replayed.rows) // 2
    replayed.play(replayed.rows[:middle])
    n_groups = len(replayed.rank.groups.groups)
    replayed.rank.restart(partial(read_json, without=["lanes", "groups"]))
    for row in replayed.rows[middle:]:
        replayed.play([row])
        groups = replayed.rank.groups
        if groups is None or len(groups.groups) < n_groups:
            replayed.answers.clear()
    assert replayed.answers
    wrong = [(n, bound, real) for n, bound, real in replayed.answers if not bound and n != real]
    below = [(n, real) for n, bound, real in replayed.answers if bound and n < real]
    assert (wrong, below) == ([], [])


def test_several_layouts_share_an_index():
    """Each rank has the common block size, its own groups and its own recording."""
    layouts = ["full", "full_swa", "gptoss_keep0", "eagle_drop"]
    first = ReplayedRank(layouts[0])
    index = first.rank.index
    replayed = [first, *(ReplayedRank(layout, index=index) for layout in layouts[1:])]
    for parts in range(4):
        for one in replayed:
            size = -(-len(one.rows) // 4)
            one.play(one.rows[parts * size : (parts + 1) * size])
    for one in replayed:
        assert [got for got in one.answers if got != (got[2], False, got[2])] == []
    for one in replayed:
        one.remove_everything()
    assert_empty(first.rank)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_versions_without_cache_groups_refuse_lanes_and_read_the_rest(layout, monkeypatch):
    """Versions up to 0.3.0 ignore the members about groups, and expect sets without lanes."""
    replayed = ReplayedRank(layout)
    replayed.play(replayed.rows[: len(replayed.rows) // 2])
    stored = []

    def keep(partition):
        stored.append(partition)
        return read_compact(partition)

    replayed.rank.restart(keep)
    (partition,) = stored
    blocks = partition.blocks
    assert read_json(partition, without=["groups", "lanes"]).blocks <= blocks
    has_lanes = partition.snapshot.sets.shape[1] > PLANES
    assert has_lanes == ("planes" in compact_writer._lane_members(partition.snapshot))
    monkeypatch.setattr(compact_writer, "_lane_members", lambda _: {})
    if has_lanes:
        with pytest.raises(DumpError, match="more bytes than declared"):
            read_compact(partition)
    else:
        assert read_compact(partition).blocks == blocks
