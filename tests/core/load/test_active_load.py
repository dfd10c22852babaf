"""Tests of ActiveLoad against its naive twin, and the worked examples of the specification."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from numba import njit

from select_service.core.load import growing_table
from select_service.core.load.compiled import load_layout as layout
from select_service.core.load.compiled.shared_prefix_kernels import fill_leading_runs
from tests.builders.hypothesis_profiles import explored
from tests.core.load.loads import Loads
from tests.models.load_model import LoadModel

EDGE_HASHES = [0, 1, 2, 3, 4, 2**63, 2**64 - 1]
HASHES = st.lists(st.sampled_from(EDGE_HASHES) | st.integers(5, 40), max_size=12)
FRACTIONS = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0])


def array(hashes):
    return np.array(hashes, np.uint64)


@njit("void(int64[::1], uint64[::1], uint64[::1], int64[::1], uint64[::1])")
def fill_runs(header, hashes, keys, out, running):
    fill_leading_runs(header, hashes, keys, out, running)


class LeadingRuns:
    """Arrays that are passed from one call to the next."""

    def __init__(self, blocks=64):
        self.keys = np.empty(blocks, np.uint64)
        self.grow(0)

    def grow(self, n_slots):
        words = n_slots // 64 + 1
        self.out, self.running = np.zeros(64 * words, np.int64), np.zeros(words, np.uint64)

    def of(self, load, query):
        """Return int64[n_slots]."""
        if len(self.out) < load.n_slots:
            self.grow(load.n_slots)
        fill_runs(load.header, query, self.keys, self.out, self.running)
        bits = np.unpackbits(self.running.view(np.uint8), bitorder="little")
        assert np.array_equal(bits, self.out != 0)
        return self.out[: load.n_slots]


def runs_of(load, query):
    return LeadingRuns().of(load, query)


class ActiveLoadMatchesModel(RuleBasedStateMachine):
    """Machine with tables of 8 rows that grow slowly, so that growth is nearly always under way."""

    names = Bundle("names")

    @initialize(n_slots=st.sampled_from([1, 3, 300]))
    def start(self, n_slots):
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(growing_table, "INITIAL_ROWS", 8)
        self.patch.setattr(growing_table, "MOVED_IN_A_STEP", 0)
        self.patch.setattr(growing_table, "TOUCHED_IN_A_STEP", 64)
        self.loads, self.model = Loads(n_slots), LoadModel()
        self.load = self.loads.load
        self.booked, self.n_slots, self.next = {}, n_slots, 0
        self.runs = LeadingRuns()

    @rule(target=names, slot=st.integers(0, 10**6), hashes=HASHES, tokens=st.integers(0, 1000))
    def add(self, slot, hashes, tokens):
        name, slot = self.next, slot % self.n_slots
        self.next += 1
        self.loads.add(name, slot, hashes, tokens)
        self.model.add(name, slot, hashes, tokens)
        self.booked[name] = slot
        return name

    @rule(name=consumes(names))
    def remove(self, name):
        del self.booked[name]
        self.loads.remove(name)
        self.model.remove(name)

    @rule(name=names, fraction=st.none() | FRACTIONS)
    def output_block(self, name, fraction):
        self.loads.output_block(name, fraction)
        self.model.output_block(name, fraction)

    @rule(name=names)
    def prefill_complete(self, name):
        self.loads.complete(name)
        self.model.live[name].prefill_tokens = 0

    @rule(name=names, slot=st.integers(0, 10**6), tokens=st.none() | st.integers(0, 1000))
    def move(self, name, slot, tokens):
        slot %= self.n_slots
        self.loads.move(name, slot, tokens)
        self.model.move(name, slot, tokens)
        self.booked[name] = slot

    @rule(blocks=st.integers(0, 40))
    def prepare(self, blocks):
        self.load.prepare_step(blocks)

    @rule(query=HASHES)
    def leading_runs(self, query):
        got = self.runs.of(self.load, array(query)).tolist()
        expected = [0] * self.n_slots
        for slot in set(self.booked.values()):
            expected[slot] = self.model.leading_run(slot, query)
        assert got == expected

    @rule(more=st.integers(1, 80))
    def more_slots(self, more):
        self.n_slots = min(320, self.n_slots + more)
        self.loads.account.ensure_slots(self.n_slots)

    @invariant()
    def sums_agree(self):
        active = self.load.compute_active_blocks()
        used = set(self.booked.values())
        assert not self.load.totals[[s for s in range(self.n_slots) if s not in used]].any()
        for slot in used:
            assert active[slot] == self.model.active_blocks(slot)
            totals = self.load.totals[slot]
            assert totals[layout.PREFILL_TOKENS] == self.model.prefill_tokens(slot)
            assert totals[layout.REQUESTS] == self.model.requests(slot)

    def teardown(self):
        self.patch.undo()

    @invariant()
    def counters_agree_with_tables(self):
        self.load.check_invariants()
        self.loads.ledger.reservations.check_invariants()


TestActiveLoadMatchesModel = explored(ActiveLoadMatchesModel)


@pytest.fixture
def loads():
    return Loads()


def test_worked_example_of_decay_and_sharing(loads):
    loads.add("a", 0, [1, 2, 3, 4])
    loads.add("b", 0, [1, 2, 5])
    assert loads.active() == 5
    loads.output_block("a", 0.25)
    assert loads.active() == 4
    loads.output_block("a", 0.5)
    assert loads.active() == 5
    loads.output_block("a")
    assert loads.active() == 6
    loads.output_block("b", 0.0)
    assert loads.active() == 5
    loads.remove("b")
    assert loads.active() == 5
    loads.output_block("a", 0.1)
    assert loads.active() == 1
    loads.add("c", 0, [1, 2, 3])
    assert loads.active() == 1
    loads.remove("a")
    assert loads.active() == 0


def test_half_a_block_rounds_up(loads):
    loads.add("a", 0, [])
    loads.output_block("a", 0.5)
    assert loads.active() == 1


def test_repeated_hash_in_one_prompt_counts_once(loads):
    loads.add("a", 0, [1, 1, 1])
    assert loads.active() == 1


def test_leading_run_needs_the_prefix_not_the_set(loads):
    loads.add("a", 0, [1, 2, 4, 5])
    for query, run in (([1, 2, 3, 5], 2), ([4, 5], 0), ([2, 4], 0), ([3], 0)):
        assert runs_of(loads.load, array(query)).tolist() == [run, 0]


def test_output_blocks_never_match_a_prompt(loads):
    loads.add("a", 0, [1])
    loads.output_block("a")
    assert runs_of(loads.load, array([1, 0])).tolist() == [1, 0]


@pytest.mark.parametrize("n_slots", [7, 700])
def test_runs_have_the_right_end_on_every_slot(n_slots):
    loads, rng = Loads(n_slots), np.random.default_rng(n_slots)
    prompt = rng.integers(0, 2**64, 300, np.uint64)
    runs, longest = LeadingRuns(blocks=256), np.zeros(n_slots, np.int64)
    for number in range(2 * n_slots):
        slot, run = int(rng.integers(n_slots)), int(rng.choice([1, 2, 40, 256, rng.integers(301)]))
        loads.add(number, slot, np.concatenate([prompt[:run], array([slot])]))
        longest[slot] = max(longest[slot], run)
        asked = int(rng.integers(301))
        expected = np.minimum(longest, min(asked, 256))
        assert np.array_equal(runs.of(loads.load, prompt[:asked]), expected)


def test_tables_grow_and_shrink_without_losing_anything(loads):
    for number in range(40):
        loads.add(number, 1, range(number * 500, number * 500 + 900), 7)
    assert loads.load.compute_active_blocks().tolist() == [0, 39 * 500 + 900]
    loads.load.check_invariants()
    for number in range(40):
        loads.remove(number)
    assert loads.load.totals.sum() == 0
    loads.load.check_invariants()


def test_releasing_a_missing_block_is_an_error(loads):
    loads.add("a", 0, [1, 2])
    for table in loads.load._all_tables():
        table.table[:] = 0
    with pytest.raises(AssertionError, match="is not booked"):
        loads.output_block("a", 0.5)
    with pytest.raises(AssertionError, match="more was released"):
        loads.remove("a")


GOLDEN, U64_MAX = 0x9E3779B97F4A7C15, 2**64 - 1
PREFIX_FACTOR = 0xD6E8FEB86659FD93
MULTIPLIERS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
CROWD = 2000


def unshift(number, by):
    """Invert `x ^ x >> by`."""
    found = number
    for _ in range(64 // by):
        found = number ^ found >> by
    return found


def unmix(number):
    """Invert the finaliser of SplitMix64."""
    number = unshift(number, 31) * pow(MULTIPLIERS[1], -1, 2**64) & U64_MAX
    number = unshift(number, 27) * pow(MULTIPLIERS[0], -1, 2**64) & U64_MAX
    return unshift(number, 30)


KEYS = [1 << 62 | number for number in range(CROWD)]
"""Keys with homes in a single row of every table, for any owner, if the seed is 0."""
HASHES_OF_KEYS = [unmix(key) for key in KEYS]
NAMES_OF_KEYS = [key * pow(PREFIX_FACTOR, -1, 2**64) & U64_MAX for key in KEYS]


def blocks_of(names):
    """Return block hashes with these prefix names."""
    pairs = pairwise([0, *names])
    return [(unmix(name) - GOLDEN & U64_MAX) ^ before for before, name in pairs]


def longest_run(table):
    """Return the length of the longest run of adjacent used rows."""
    free = np.flatnonzero(table.table.reshape(-1, table._fields)[:, 1] == 0)
    rows = len(table.table) // table._fields
    return int(np.diff(np.append(free, free[0] + rows)).max()) - 1


@pytest.mark.parametrize(
    ("hashes", "tables"),
    [
        (HASHES_OF_KEYS, ["_references"]),
        (blocks_of(NAMES_OF_KEYS), ["_prefixes", "_holders"]),
    ],
    ids=["blocks", "prefixes"],
)
def test_chosen_hashes_crowd_no_table(hashes, tables, loads):
    crowded = Loads()
    crowded.load.header[layout.HASH_SEED] = 0
    for each in (crowded, loads):
        each.add("a", 1, hashes)
    for table in tables:
        assert longest_run(getattr(crowded.load, table)) > 1000
        assert longest_run(getattr(loads.load, table)) < 200


INVERSE = pow(PREFIX_FACTOR, -1, 2**64)


@pytest.mark.parametrize("step", [1, INVERSE, 1 << 20, 1 << 44, 1 << 49])
@pytest.mark.parametrize("names_of", [lambda steps: steps, blocks_of], ids=["blocks", "prefixes"])
def test_hashes_in_steps_crowd_no_table(step, names_of, loads):
    """Check steps, also behind the mix's first shift, the only step without a multiplication."""
    steps = [number * step & U64_MAX for number in range(1, CROWD)]
    loads.add("a", 1, names_of(steps))
    loads.add("b", 1, names_of([unshift(number, 30) for number in steps]))
    for table in loads.load._all_tables():
        assert longest_run(table) < 200
