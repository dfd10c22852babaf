"""Tests that a service answers the same requests alike with and without the fast path."""

import json
from collections import deque
from collections.abc import Iterator
from itertools import chain, pairwise
from random import Random
from time import monotonic
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from indexer.hashing.block_hashing import compute_block_hashes
from indexer.tiers import Tier
from select_service.core.admission.headroom_kernels import fill_headroom
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.compiled.load_layout import REPORTED_SHARE
from select_service.core.load.compiled.observation_layout import PROMPTS, TTFT, TTFT_US
from select_service.core.load.histogram_bins import TIME_BINS
from select_service.core.placement.pending_selection_layout import SELECTED_AT
from select_service.core.placement.pending_selections import decode_record
from select_service.core.registry.fleet.partition import Partition
from select_service.core.traffic import traffic_counters as observed
from tests.builders import worker_body
from tests.builders.hypothesis_profiles import explored
from tests.fastpath.mutations import mutated
from tests.fastpath.prompts import chosen_in, get, hashes_of, post, prompt_of, scope_of
from tests.fastpath.requests import AIOHTTP, BARE, HTTPX, HYPER, USUAL, request
from tests.fastpath.two_services import Side, TwoServices

SCOPES = (("m", "default"), ("m", "b"), ("llama", "default"), ("n/\u00e4", "default"))
FIRST_WORKERS = {1: SCOPES[0], 2: SCOPES[0], 3: SCOPES[2]}
"""Scopes of the first workers, so that most requests succeed."""
IDS = ("request-123", "r/1 %?", "r", "x", "a.b_c~d:1")
VERBS = ("prefill_complete", "output_block", "renew")
HEADERS = (HTTPX, AIOHTTP, HYPER, BARE)
LENGTHS = (1, 3, 4, 9, 16, 31, 60)
DRAWS = (0.0, 0.3, 0.5, 0.99)
POLICIES = (
    {"policy": "reference"},
    {"policy": "work", "options": ["decode-sensitive"]},
    {"policy": "least_work"},
)
OUTPUTS = (None, 0, 9)
"""Expected tokens of output."""
SAID_MAX = 30
"""Number of last requests kept to be sent again in pieces or with changes."""

workers = st.integers(1, 4)
scopes = st.sampled_from((SCOPES[0], *SCOPES))
lengths = st.sampled_from(LENGTHS)
draws = st.sampled_from(DRAWS)
ids = st.sampled_from(IDS)
sessions = st.sampled_from(("s", "conversation-7", "s" * 256, "s" * 257, "\u00e4", ""))
names = st.fixed_dictionaries({}, optional={"reservation_id": ids, "selection_id": ids})
"""Ids of a booking in either dialect, if any."""
outputs = st.sampled_from(OUTPUTS)


def observed_of(side: Side) -> dict[PartitionKey, Any]:
    """Return the counted traffic, without values that depend on the speed of the two services."""
    selector = side.selector
    found = {}
    for key, partition in selector.fleet.partitions.items():
        counted = observed.PartitionTrafficCounter()
        counted.set_sources(partition, selector.ledger.reservations.sums.find_observed(key))
        now = counted.read_counters(0)
        begin = observed.RESERVATIONS
        times = now[begin + TTFT : observed.REFUSED]
        found[key] = [*now[: begin + TTFT_US], *now[begin + PROMPTS : begin + TTFT]]
        found[key] += [times[:TIME_BINS].sum(), times[TIME_BINS:].sum()]
    return found


def timeless_metrics(text: bytes) -> list[bytes]:
    """Return the lines of /metrics that do not depend on time, connections or open files."""
    timed = (b"process_", b"_sum", b"_bucket", b"_task", b"seconds_ago")
    of_the_process = (b'limit="connections"', b'limit="event_ranks"')
    lines = text.partition(b"\r\n\r\n")[2].splitlines()
    return [line for line in lines if not any(word in line for word in timed + of_the_process)]


SESSION_KEY = ("model_name", "tenant_id", "session_id")
RESERVATIONS = "/reservations?sequence_hashes=true&limit=1000"


def reservations(text: bytes) -> list[dict[str, Any]]:
    """Return all reservations without values that depend on time."""
    rows: list[dict[str, Any]] = json.loads(text.partition(b"\r\n\r\n")[2])["reservations"]
    return [{k: v for k, v in row.items() if not k.endswith("_seconds")} for row in rows]


def listed_sessions(text: bytes) -> list[dict[str, Any]]:
    """Return all sessions without values that depend on time or on the process."""
    rows = json.loads(text.partition(b"\r\n\r\n")[2])["sessions"]
    of_the_process = ("sequence", "writer_id")
    return [
        {k: v for k, v in row.items() if not k.endswith("_seconds") and k not in of_the_process}
        for row in sorted(rows, key=lambda row: [row[name] for name in SESSION_KEY])
    ]


def decisions(side: Side) -> list[dict[str, Any]]:
    """Return all kept decisions and the last decision with an id in full, without times."""

    def fetch(path: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(side.send(get(path)).partition(b"\r\n\r\n")[2])
        return {name: value for name, value in found.items() if name != "seconds_ago"}

    rows = fetch("/decisions?limit=1000")["decisions"]
    named = [row["reservation_id"] for row in rows if "reservation_id" in row][:1]
    found = [fetch(f"/decisions/{quote(name, safe='')}") for name in named]
    return found + [row | {"seconds_ago": None} for row in rows]


def pending_selections(side: Side) -> list[bytes]:
    """Return the selections that a later booking may take over, oldest first, without times."""
    records = list(side.selector.replay.pending.records.values())
    timeless = [record[: 8 * SELECTED_AT] + record[8 * SELECTED_AT + 8 :] for record in records]
    assert all(decode_record(record).selected_at > 0.0 for record in records)
    return timeless


class TheSameAnswers(RuleBasedStateMachine):
    flags: tuple[str, ...] = ()
    replicas = 1
    services: type[TwoServices] = TwoServices
    changes_overlap_by_booking = False

    def __init__(self) -> None:
        super().__init__()
        self.two = self.services(*self.flags, replicas=self.replicas)
        self.said: deque[bytes] = deque(maxlen=SAID_MAX)

    def teardown(self) -> None:
        with self.two:
            self.agree_in_the_end()

    def agree_in_the_end(self) -> None:
        """Check that both services agree on everything that is visible."""
        for replica in range(self.replicas):
            self.two.turn_to(replica)
            for path in ("/loads", "/dump"):
                assert self.send(get(path)).startswith(b"HTTP/1.1 200 ")
            sides = (self.two.fast, self.two.ordinary)
            listed = [reservations(side.send(get(RESERVATIONS))) for side in sides]
            assert listed[0] == listed[1]
            talks = [listed_sessions(side.send(get("/sessions?limit=1000"))) for side in sides]
            assert talks[0] == talks[1]
            assert pending_selections(sides[0]) == pending_selections(sides[1])
            self.agree_on_decisions()
            metrics = [timeless_metrics(side.send(get("/metrics"))) for side in sides]
            fast, ordinary = map(set, metrics)
            assert (fast - ordinary, ordinary - fast) == (set(), set())

    def agree_on_decisions(self) -> None:
        """Check that both services agree on the kept decisions."""
        listed = [decisions(side) for side in (self.two.fast, self.two.ordinary)]
        assert listed[0] == listed[1]

    def send(self, *parts: bytes, drawn: float = 0.0) -> bytes:
        self.said.append(b"".join(parts))
        return self.two.send(*parts, drawn=drawn)

    def send_to_all(self, data: bytes) -> None:
        """Send data to every replica.

        The request is not sent again later, because the answer comes from a thread.
        """
        at = self.two.at
        for replica in range(self.replicas):
            self.two.turn_to(replica)
            self.two.send(data)
        self.two.turn_to(at)

    # Workers

    @initialize(size=st.integers(1, 3))
    def register_first(self, size: int) -> None:
        for worker, scope in FIRST_WORKERS.items():
            self.register(worker, scope, size, 0, "http://a", 8192)

    @rule(
        worker=workers,
        scope=scopes,
        size=st.integers(1, 3),
        start=st.sampled_from((0, 0, 7)),
        endpoint=st.sampled_from(("http://a", 'http://\u00e4"\\', "x" * 500)),
        tokens=st.sampled_from((16, 8192)),
    )
    def register(
        self, worker: int, scope: tuple[str, str], size: int, start: int, endpoint: str, tokens: int
    ) -> None:
        body = worker_body(
            worker,
            model_name=scope[0],
            tenant_id=scope[1],
            endpoint=endpoint,
            data_parallel_size=size,
            data_parallel_start_rank=start,
            max_num_batched_tokens=tokens,
            total_kv_blocks=40,
            taints=["t"] if worker == 1 else [],
        )
        self.send_to_all(post("/workers", body))

    @rule(worker=workers, endpoint=st.sampled_from(("http://b", "")))
    def move(self, worker: int, endpoint: str) -> None:
        self.send_to_all(request(f"PATCH /workers/{worker}", HTTPX, {"endpoint": endpoint}))

    @rule(
        scope=st.sampled_from(((), SCOPES[0][:1], SCOPES[0], SCOPES[2])),
        chosen=st.sampled_from((None, *POLICIES)),
    )
    def switch_advisory(self, scope: tuple[str, ...], chosen: dict[str, Any] | None) -> None:
        """Switch the ranks of a scope to another policy."""
        named = dict(zip(("model_name", "tenant_id"), scope, strict=False))
        if chosen is None:
            self.send_to_all(request(f"DELETE /policy?{urlencode(named)}", HTTPX))
        else:
            self.send_to_all(request("PUT /policy", HTTPX, {**named, **chosen}))

    @rule(worker=st.integers(2, 4))
    def delete_worker(self, worker: int) -> None:
        self.send_to_all(request(f"DELETE /workers/{worker}", HTTPX))

    @rule(
        scope=scopes,
        worker=workers,
        dp_rank=st.integers(0, 2),
        length=lengths,
        tier=st.sampled_from(list(Tier)),
    )
    def store(
        self, scope: tuple[str, str], worker: int, dp_rank: int, length: int, tier: Tier
    ) -> None:
        """Let a rank hold the beginning of the prompts."""
        for side in chain.from_iterable(self.two.pairs):
            hold(side, PartitionKey(*scope), Rank(worker, dp_rank), length, tier)

    @rule(worker=workers, dp_rank=st.integers(0, 2), weight=st.sampled_from((1.0, 1.0, 0.5, 0.0)))
    def weigh(self, worker: int, dp_rank: int, weight: float) -> None:
        for side in chain.from_iterable(self.two.pairs):
            side.selector.fleet.set_weight(Rank(worker, dp_rank), weight, "unhealthy")

    # Requests that may be usual

    @rule(
        scope=scopes,
        length=lengths,
        as_tokens=st.booleans(),
        headers=st.sampled_from(HEADERS),
        spelling=st.integers(0, 5),
        drawn=draws,
        selection_id=st.sampled_from((None, "turn-17", "\u00e4", 'a\\"')),
        with_hashes=st.booleans(),
    )
    def select(
        self,
        scope: tuple[str, str],
        length: int,
        as_tokens: bool,
        headers: Any,
        spelling: int,
        drawn: float,
        selection_id: str | None,
        with_hashes: bool,
    ) -> None:
        body = {**scope_of(scope, spelling), **prompt_of(length, as_tokens)}
        if selection_id is not None:
            body["selection_id"] = selection_id
        is_compact = spelling % 2 == 0
        answer = self.send(post("/select", body, headers, compact=is_compact), drawn=drawn)
        if with_hashes and (chosen := chosen_in(answer)) is not None:
            told = self.send(
                post("/select", {**body, "include_hashes": True}, headers), drawn=drawn
            )
            assert chosen_in(told) == {**chosen, **hashes_of(length)}

    @rule(
        scope=scopes,
        length=lengths,
        as_tokens=st.booleans(),
        name=ids,
        expected=outputs,
        drawn=draws,
        replays=st.integers(0, 2),
    )
    def select_and_replay(
        self,
        scope: tuple[str, str],
        length: int,
        as_tokens: bool,
        name: str,
        expected: int | None,
        drawn: float,
        replays: int,
    ) -> None:
        named = {**scope_of(scope, 1), "selection_id": name}
        body = {**named, **prompt_of(length, as_tokens)}
        if expected is not None:
            body["expected_output_tokens"] = expected
        self.send(post("/select", body), drawn=drawn)
        for _ in range(replays):
            self.send(post("/reservations", named))

    @rule(
        scope=scopes,
        length=lengths,
        as_tokens=st.booleans(),
        named=names,
        expected=outputs,
        drawn=draws,
        is_repeated=st.booleans(),
        returns=st.sampled_from((None, None, True, False)),
        spelling=st.integers(0, 5),
    )
    def select_and_reserve(
        self,
        scope: tuple[str, str],
        length: int,
        as_tokens: bool,
        named: dict[str, str],
        expected: int | None,
        drawn: float,
        is_repeated: bool,
        returns: bool | None,
        spelling: int,
    ) -> None:
        body = {**scope_of(scope, spelling), **prompt_of(length, as_tokens), **named}
        optional = {"expected_output_tokens": expected, "return_hashes": returns}
        body |= {name: value for name, value in optional.items() if value is not None}
        answer = self.send(post("/select_and_reserve", body), drawn=drawn)
        if is_repeated and named:
            body |= {"repeat": True, "include_hashes": True, "return_hashes": None}
            again = self.send(post("/select_and_reserve", body), drawn=drawn)
            if (chosen := chosen_in(answer)) is not None:
                repeated = chosen_in(again)
                assert repeated is not None
                if self.changes_overlap_by_booking:
                    repeated["overlap"] = chosen["overlap"]
                assert repeated == {**chosen, **hashes_of(length)}

    @rule(
        scope=scopes,
        session=sessions,
        lengths=st.lists(lengths, min_size=1, max_size=4),
        named=names,
        affinity=st.sampled_from((None, None, None, "hard", "soft")),
        is_booked=st.booleans(),
        drawn=draws,
    )
    def converse(
        self,
        scope: tuple[str, str],
        session: str,
        lengths: list[int],
        named: dict[str, str],
        affinity: str | None,
        is_booked: bool,
        drawn: float,
    ) -> None:
        """Send turns of a session, the first of these with a name."""
        for length in lengths:
            body = {**scope_of(scope, 1), **prompt_of(length, True), **named}
            body |= {"session_id": session}
            if affinity is not None:
                body["affinity"] = affinity
            route = "/select_and_reserve" if is_booked else "/select"
            self.send(post(route, body), drawn=drawn)
            named = {}

    @rule(scope=scopes, session=sessions)
    def end_session(self, scope: tuple[str, str], session: str) -> None:
        """End a session, but not over HTTP, as the answer has a version that depends on time."""
        for side in chain.from_iterable(self.two.pairs):
            directory = side.selector.decisions.sessions.directory
            directory.end_session(PartitionKey(*scope), session, monotonic())

    @rule(
        scope=scopes,
        worker=workers,
        dp_rank=st.none() | st.integers(0, 2),
        length=lengths,
        as_tokens=st.booleans(),
        named=names.filter(bool),
        tokens=st.sampled_from((None, 0, 4, 100)),
        expected=outputs,
    )
    def reserve(
        self,
        scope: tuple[str, str],
        worker: int,
        dp_rank: int | None,
        length: int,
        as_tokens: bool,
        named: dict[str, str],
        tokens: int | None,
        expected: int | None,
    ) -> None:
        body = {**scope_of(scope, 1), **prompt_of(length, as_tokens)}
        body |= {"worker_id": worker, **named}
        optional = {
            "dp_rank": dp_rank,
            "effective_prefill_tokens": tokens,
            "expected_output_tokens": expected,
        }
        body |= {name: value for name, value in optional.items() if value is not None}
        self.send(post("/reservations", body))

    @rule(reservation=ids, verb=st.sampled_from(VERBS))
    def live_on(self, reservation: str, verb: str) -> None:
        self.send(request(f"POST /reservations/{reservation}/{verb}"))

    @rule(
        length=lengths,
        reservation=ids,
        field=st.sampled_from(("reservation_id", "selection_id")),
        expected=outputs,
        is_placed=st.booleans(),
        verbs=st.lists(st.sampled_from(VERBS), max_size=4),
        is_freed=st.booleans(),
    )
    def live(
        self,
        length: int,
        reservation: str,
        field: str,
        expected: int | None,
        is_placed: bool,
        verbs: list[str],
        is_freed: bool,
    ) -> None:
        """Send the requests of a usual life."""
        named = {field: reservation}
        if is_placed:
            usual = (expected, 0.5, False, None, 1)
            self.select_and_reserve(SCOPES[0], length, True, named, *usual)
        else:
            self.reserve(SCOPES[0], 1, None, length, False, named, None, expected)
        for verb in verbs:
            self.live_on(reservation, verb)
        if is_freed:
            self.free(reservation)

    @rule(reservation=ids, fraction=st.sampled_from((0.0, 0.5, 1.0)))
    def decay(self, reservation: str, fraction: float) -> None:
        path = f"/reservations/{reservation}/output_block"
        self.send(post(path, {"decay_fraction": fraction}))

    @rule(reservation=ids)
    def free(self, reservation: str) -> None:
        self.send(request(f"DELETE /reservations/{reservation}"))

    # Bytes

    @rule(chosen=st.sampled_from(USUAL), seed=st.integers(0, 2**32), drawn=draws)
    def send_changed(self, chosen: bytes, seed: int, drawn: float) -> None:
        self.send(mutated(chosen, Random(seed)), drawn=drawn)
        self.two.reconnect()

    @rule(
        chosen=st.lists(st.sampled_from(USUAL), min_size=1, max_size=5),
        cuts=st.lists(st.integers(0, 2000), max_size=4),
        drawn=draws,
    )
    def send_in_pieces(self, chosen: list[bytes], cuts: list[int], drawn: float) -> None:
        stream = b"".join(chosen)
        places = [0, *sorted(cut % len(stream) for cut in cuts), len(stream)]
        pieces = [stream[a:b] for a, b in pairwise(places) if a < b]
        self.send(*pieces, drawn=drawn)

    @invariant()
    def the_load_is_the_same(self) -> None:
        for pair in self.two.pairs:
            loads = [list(side.selector.inspection.partition_loads()) for side in pair]
            assert loads[0] == loads[1]
            work = [list(work_of(side)) for side in pair]
            assert work[0] == work[1]
            seen = [observed_of(side) for side in pair]
            assert seen[0] == seen[1]


class TheSameAnswersByReference(TheSameAnswers):
    flags = ("--policy", "reference")


class TheSameAnswersWithThresholds(TheSameAnswers):
    flags = ("--active-decode-blocks-threshold", "0.5", "--active-prefill-tokens-threshold", "40")


class TheSameAnswersWithQueues(TheSameAnswers):
    flags = ("--queue-threshold", "1.0", "--queue-timeout-secs", "0.001")


class TheSameAnswersWithHardSessions(TheSameAnswers):
    flags = ("--session-affinity-ttl-secs", "60", "--session-affinity-mode", "hard")


class TheSameAnswersWithHardSessionsInQueues(TheSameAnswers):
    flags = (*TheSameAnswersWithHardSessions.flags, *TheSameAnswersWithQueues.flags)


class TheSameAnswersWithHolds(TheSameAnswers):
    flags = (*TheSameAnswersWithQueues.flags, "--queue-policy", "work")


class TheSameAnswersWithAssumedBlocks(TheSameAnswers):
    flags = ("SELECT_SERVICE_NO_ASSUMED_INDEX=false",)
    changes_overlap_by_booking = True

    @invariant()
    def the_assumed_blocks_are_the_same(self) -> None:
        for pair in self.two.pairs:
            assumed = [list(assumed_of(side)) for side in pair]
            assert assumed[0] == assumed[1]


def assumed_of(side: Side) -> Iterator[Any]:
    """Yield the names of the assumed blocks of each rank, in order."""
    for key, partition in sorted(side.selector.fleet.partitions.items()):
        assert partition.assumed is not None
        for rank, slot in sorted(partition.table.iterate_slots()):
            yield key, rank, partition.assumed.list_names(slot)[0]


def work_of(side: Side) -> Iterator[Any]:
    """Yield the account of work of each partition."""
    for key, partition in sorted(side.selector.fleet.partitions.items()):
        look_for_progress(partition)
        prefills = partition.load.prefills
        yield key, prefills.work_booked.tolist(), prefills.work_left.tolist()
        yield int(partition.load.header[REPORTED_SHARE])


def look_for_progress(partition: Partition) -> None:
    """Read the progress as every placement does.

    The two services may differ in the placements of refused requests.
    """
    everybody = np.ones(partition.table.n_slots, np.bool_)
    fill_headroom(partition.placer.plan, everybody, np.inf, 0.0, everybody.copy())


def hold(side: Side, key: PartitionKey, rank: Rank, length: int, tier: Tier) -> None:
    partition = side.selector.fleet.partitions.get(key)
    if partition is None or partition.table.find_slot(rank) is None:
        return
    hashes = compute_block_hashes(np.arange(length, dtype=np.uint32), partition.block_size)
    names = hashes + np.uint64(rank.worker_id * 1000 + rank.dp_rank)
    partition.table.writer_of(rank).store(tier, None, hashes, names)


TestTheSameAnswers = explored(TheSameAnswers, runs=6)
TestTheSameAnswersByReference = explored(TheSameAnswersByReference, runs=3)
TestTheSameAnswersWithThresholds = explored(TheSameAnswersWithThresholds, runs=3)
TestTheSameAnswersWithQueues = explored(TheSameAnswersWithQueues, runs=3)
TestTheSameAnswersWithAssumedBlocks = explored(TheSameAnswersWithAssumedBlocks, runs=4)
TestTheSameAnswersWithHolds = explored(TheSameAnswersWithHolds, runs=3)
TestTheSameAnswersWithHardSessions = explored(TheSameAnswersWithHardSessions, runs=3)
TestTheSameAnswersWithHardSessionsInQueues = explored(
    TheSameAnswersWithHardSessionsInQueues, runs=3
)
