"""Tests of the doctor's findings: a table of facts, and no second finding from the same cause."""

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from indexer.index.cache_group_status import CacheGroupStatus, GroupStatus
from indexer.sockets.listener_status import ListenerStatus
from select_service.core.doctor import service_findings, worker_findings
from select_service.core.doctor.facts import (
    EngineReportedFacts,
    PairFacts,
    ProbeFacts,
    RankFacts,
    ReplayFacts,
    ServiceFacts,
    TlsFacts,
    WorkerFacts,
)
from select_service.core.doctor.finding_codes import FINDING_CODES
from select_service.schemas.discovery import SourceView
from select_service.schemas.doctor import Machine, Severity
from select_service.schemas.health import DrainView
from select_service.schemas.rank_index import RankPredictions
from select_service.schemas.replicas import ReplicaPeer, ReplicaRepairs

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "doctor-codes.md"
STATUS = ListenerStatus(
    state="connected",
    endpoint="tcp://e:1",
    replay_endpoint="tcp://e:2",
    last_sequence=9,
    batches=10,
    gaps=0,
    replayed=0,
    lost=0,
    stale=0,
    restarts=0,
    decode_errors=0,
    last_error=None,
    is_size_wrong=False,
    last_event_monotonic=1.0,
    connected=True,
    connect_error=None,
    unconnected_monotonic=None,
    is_counted=True,
    inflations=0,
    degraded=None,
    degraded_monotonic=None,
    doubt=None,
    doubted_monotonic=None,
    stored_blocks=10,
    removed_blocks=0,
    dropped={},
)
UNCONNECTED = replace(STATUS, connected=False, batches=0, state="no_events_yet")
SILENT = replace(STATUS, batches=0, state="no_events_yet")
RANK = RankFacts(
    dp_rank=0,
    events_endpoint="tcp://e:1",
    status=STATUS,
    replay_endpoint="tcp://e:2",
    replay=ReplayFacts(batches=3, block_sizes=(16,), clock_s=0.01, checked=2, found=2),
    silent_s=1.0,
)
WORKER = WorkerFacts(
    worker_id=7,
    model_name="m",
    block_size=16,
    data_parallel_size=1,
    endpoint="http://e:8000",
    description=EngineReportedFacts("vllm", 16, ("m",), None),
    clock_s=0.0,
    ranks=(RANK,),
    n_ranks=1,
)
SUSPECT = RankPredictions(
    checks=20, trust=0.1, waits=0, wait_error=None, tokens_per_s=None, suspect="events arrive, but"
)


def a_rank(**changes):
    return WORKER._replace(ranks=(RANK._replace(**changes),))


def a_status(**changes):
    return a_rank(status=replace(STATUS, **changes))


WINDOWS = CacheGroupStatus(
    groups=(GroupStatus(0, "sliding_window", 16, 4, False),),
    unit=16,
    reasons=(),
)
CHUNKS = WINDOWS._replace(
    groups=(
        GroupStatus(0, "full_attention", 16, 0, True),
        GroupStatus(1, "chunked_local_attention", 16, 4, False),
    ),
    reasons=("group 1: the size of a chunk is unknown", "another one"),
)


def codes(facts):
    return [each.code for each in worker_findings.find_worker_faults(facts)]


def test_a_healthy_worker_has_no_finding():
    assert codes(WORKER) == []


def with_reported_facts(reported, **changes):
    description = WORKER.description._replace(kv_cache=reported)
    return WORKER._replace(description=description, **changes)


@pytest.mark.parametrize(
    "facts",
    [
        with_reported_facts({"certainty": "at_most"}, kv_cache={"certainty": "exact"}),
        with_reported_facts({"speculates": True}, kv_cache={"speculates": True}),
        with_reported_facts({"speculates": True}, kv_cache={"eagle_drop": False}),
        with_reported_facts({"speculates": True}, is_eagle=True),
    ],
)
def test_registered_cache_facts_are_not_requested(facts):
    assert codes(facts) == []


@pytest.mark.parametrize(
    ("facts", "code", "text"),
    [
        (
            WORKER._replace(is_schedulable=False, reasons=("missing endpoint",)),
            "worker_incomplete",
            "missing endpoint",
        ),
        (a_status(unknown_fields={"b": 2, "a": 1}), "unknown_event_fields", "`a` 1 times, `b` 2"),
        (
            a_status(cache_groups=CHUNKS),
            "cache_groups_bounded",
            "upper bounds: group 1: the size of a chunk is unknown; another one",
        ),
        (a_status(cache_groups=WINDOWS), "no_dense_group", "full attention, only sliding_window"),
        (
            a_status(inside_block_events=3),
            "ends_inside_blocks",
            "3 events are about the end of a prompt inside a block of 16 tokens",
        ),
        (a_status(plain_eagle_events=3), "eagle_events_plain", "3 events have blocks alone"),
        (a_status(lookahead_events=3), "eagle_not_registered", "3 events cover tokens behind"),
        (
            a_status(engine_changes=1, engine_change="topic kv@a@m became kv@b@m"),
            "engine_replaced",
            "topic kv@a@m became kv@b@m",
        ),
        (
            with_reported_facts(
                {"hash": {"algorithm": "xxhash"}, "speculates": True}, kv_cache={"chunk": 4}
            ),
            "cache_facts_missing",
            'reports `hash: {"algorithm":"xxhash"}`, `speculates: true`, which',
        ),
        (
            WORKER._replace(drain=DrainView(state="draining", asked_by=["source"], reservations=2)),
            "worker_drains",
            "drains on request of source; 2 reservations are left",
        ),
        (
            WORKER._replace(endpoint_error="refused", description=None),
            "engine_unreachable",
            "refused",
        ),
        (
            WORKER._replace(http_error="no answer", description=None),
            "engine_no_answer",
            "is open, but",
        ),
        (
            WORKER._replace(description=EngineReportedFacts(None)),
            "engine_unknown",
            "match neither vLLM nor",
        ),
        (
            WORKER._replace(description=EngineReportedFacts("vllm", 32, ("m",))),
            "block_size_differs",
            "block_size 16, the engine has 32",
        ),
        (
            a_status(dropped={"block_size": 5}, is_size_wrong=True),
            "block_size_differs",
            "5 events have another size and none has this size",
        ),
        (
            WORKER._replace(description=EngineReportedFacts("vllm", 16, ("x",))),
            "model_name_differs",
            "serves `x`",
        ),
        (
            WORKER._replace(description=EngineReportedFacts("sglang", 16, ("m",), 4)),
            "ranks_differ",
            "has 4",
        ),
        (a_rank(status=UNCONNECTED, events_error="refused"), "events_unreachable", "refused"),
        (a_rank(status=UNCONNECTED), "events_not_connected", "is open, but"),
        (
            a_rank(status=UNCONNECTED, events_error="refused", unconnected_s=61.0),
            "events_unreachable",
            "refused; unconnected for 61 s",
        ),
        (
            a_rank(status=UNCONNECTED, unconnected_s=61.0),
            "events_not_connected",
            "; unconnected for 61 s",
        ),
        (a_rank(status=SILENT, requests=3), "events_silent", "3 active requests"),
        (a_rank(status=SILENT, predictions=SUSPECT), "events_silent", "after 20 prompts"),
        (a_rank(silent_s=900.0, requests=1), "events_silent", "900 s"),
        (
            a_rank(status=SILENT)._replace(probed=ProbeFacts(blocks=2, waited_s=4.0)),
            "events_silent",
            "4.0 s after the answer",
        ),
        (a_status(lost=3, degraded="a gap"), "events_lost", "3 batches of 13 are lost: a gap"),
        (a_status(decode_errors=2, last_error="what?"), "events_unreadable", "latest error: what?"),
        (a_status(dropped={"rank": 4}), "events_not_indexed", "4 by `rank`"),
        (a_rank(replay_endpoint=None, replay=None), "replay_missing", "no replay endpoint"),
        (a_rank(replay=ReplayFacts("refused", False)), "replay_unreachable", "refused"),
        (a_rank(replay=ReplayFacts("no answer", True)), "replay_silent", "no answer"),
        (
            a_rank(replay=ReplayFacts(batches=1, checked=4)),
            "blocks_not_found",
            "none of the 4 blocks",
        ),
        (
            WORKER._replace(probed=ProbeFacts(blocks=2, waited_s=4.0)),
            "blocks_not_found",
            "a prompt of 2 blocks",
        ),
        (a_rank(predictions=SUSPECT), "predictions_wrong", "announced 10%"),
        (
            WORKER._replace(lost="rank 0 (dead: connect)"),
            "capacity_lost",
            "gets no requests on rank 0 (dead: connect)",
        ),
        (
            WORKER._replace(check_refused="status 404: no such model"),
            "check_refused",
            "health checks for the model `m`, so its health is unknown: status 404: no such",
        ),
        (WORKER._replace(probed=ProbeFacts("HTTP status 404")), "probe_refused", "404"),
        (a_rank(replay=ReplayFacts(clock_s=5.0)), "clock_off", "5.0 s ahead of ours, measured by"),
        (WORKER._replace(clock_s=-9.0), "clock_off", "9.0 s behind of ours, measured by HTTP"),
        (WORKER._replace(n_ranks=20), "ranks_left_out", "first 1 of 20"),
        (WORKER._replace(is_cut_short=True, ranks=(), n_ranks=0), "not_examined", "time limit"),
    ],
)
def test_a_cause_is_one_finding(facts, code, text):
    (finding,) = worker_findings.find_worker_faults(facts)
    assert (finding.code, finding.worker_id) == (code, 7)
    assert text in finding.text
    assert (finding.severity, finding.fix) == (
        FINDING_CODES[code].severity,
        FINDING_CODES[code].fix.replace("{worker_id}", "7"),
    )


@pytest.mark.parametrize(
    "facts",
    [
        a_rank(status=SILENT),  # the engine has had no request
        a_rank(replay=ReplayFacts(clock_s=-1.8e9)),  # a clock without a date
        a_status(dropped={"medium": 9, "attention_group": 3}),  # as usual for some models
        a_status(dropped={"other_size": 9, "partial_block": 3, "block_size": 1}),
        a_rank(replay=ReplayFacts(batches=0)),
        WORKER._replace(probed=ProbeFacts(blocks=2, found=2)),
        WORKER._replace(clock_s=2.0),
        a_status(cache_groups=CHUNKS._replace(reasons=())),
        # The engine describes another size than its dense blocks have.
        a_status(has_registered_size=True)._replace(
            description=EngineReportedFacts("vllm", 1024, ("m",))
        ),
    ],
)
def test_usual_facts_are_no_finding(facts):
    assert codes(facts) == []


def test_consequences_of_a_cause_are_no_further_finding():
    wrong = a_rank(
        status=replace(STATUS, dropped={"block_size": 5}, is_size_wrong=True),
        replay=ReplayFacts(batches=1, checked=4),
        predictions=SUSPECT,
    )
    assert codes(wrong._replace(description=EngineReportedFacts("vllm", 32, ("m",)))) == [
        "block_size_differs"
    ]
    off = a_rank(replay=ReplayFacts(clock_s=9.0))._replace(clock_s=9.0)
    assert codes(off) == ["clock_off"]


MACHINE = Machine(
    version="1",
    python="3",
    libraries={},
    processor="this one",
    descriptors=10,
    descriptors_max=100,
    memory_bytes=1 << 20,
    memory_bytes_max=1 << 30,
    loop_late_ms=0.5,
    loop_late_ms_max=3.0,
    cpu_stolen=0.0,
    cpu_throttled=None,
)
PEER = ReplicaPeer(
    endpoint="tcp://b:9092",
    replica=None,
    is_self=False,
    connected=True,
    router_id=1,
    frames_in=1,
    frames_out=1,
    applied=1,
    digests=1,
    progress=0,
    sessions=0,
    session_repairs=0,
    sessions_repaired=0,
    lost=0,
    dropped={},
    seconds_since_last_frame=0.5,
    divergence_reservations=0,
    divergence_prefill_tokens=0,
    divergence=[],
    repairs=ReplicaRepairs(runs=0, failed=0, added=0, dropped=0, changed=0, repeated=0, refused=0),
    last_error=None,
    seconds_since_last_error=None,
)
SOURCE = SourceView(
    name="file",
    kind="file",
    place="w.yaml",
    read_s=1.0,
    error=None,
    readings=1,
    failures=0,
    desired=1,
    owned=1,
    leaving=0,
    conflicts=0,
    refused=0,
    conflicting={},
    reasons={},
    patched=[],
    deleted=[],
    withheld=0,
    unanswered={},
)
SERVICE = ServiceFacts(MACHINE, workers=2, schedulable=2, peers=(PEER,), sources=(SOURCE,))


def on(**changes):
    return SERVICE._replace(machine=msgspec.structs.replace(MACHINE, **changes))


def a_peer(**changes):
    return SERVICE._replace(peers=(msgspec.structs.replace(PEER, **changes),))


def a_source(**changes):
    return SERVICE._replace(sources=(msgspec.structs.replace(SOURCE, **changes),))


def test_a_healthy_service_has_no_finding():
    assert service_findings.find_service_faults(SERVICE) == []


@pytest.mark.parametrize(
    ("facts", "code", "severity", "text"),
    [
        (SERVICE._replace(schedulable=0), "no_workers", "warning", "2 workers are registered"),
        (
            SERVICE._replace(schedulable=0, workers=1),
            "no_workers",
            "warning",
            "1 worker is registered, and is not schedulable",
        ),
        (
            SERVICE._replace(schedulable=0, workers=0),
            "no_workers",
            "warning",
            "no worker is registered",
        ),
        (on(descriptors=85), "descriptors_short", "warning", "85 of 100"),
        (on(descriptors=99), "descriptors_short", "fault", "99%"),
        (on(memory_bytes=9 << 27), "memory_short", "fault", "1.1 of 1.0 GiB"),
        (on(cpu_stolen=0.2), "cpu_stolen", "warning", "20%"),
        (on(cpu_throttled=0.5), "cpu_throttled", "warning", "50%"),
        (on(loop_late_ms=25.0), "loop_late", "warning", "25.0 ms"),
        (on(loop_late_ms_max=900.0), "loop_late", "warning", "900 ms"),
        (on(processor="x86-64-v3"), "kernels_generic", "note", "`x86-64-v3`"),
        (
            SERVICE._replace(pairs=PairFacts(without_decode=("model=m tenant=t",))),
            "prefill_without_decode",
            "warning",
            "model=m tenant=t",
        ),
        (
            SERVICE._replace(pairs=PairFacts(9, unknown_links=2)),
            "link_unknown",
            "warning",
            "9 pairs were chosen, and 2 workers",
        ),
        (
            SERVICE._replace(pairs=PairFacts(1, connectors={"model=m": ("nixl", "sglang")})),
            "connectors_differ",
            "warning",
            "nixl, sglang",
        ),
        (
            SERVICE._replace(pairs=PairFacts(30, unreported=20)),
            "first_tokens_unreported",
            "note",
            "none of 20",
        ),
        (SERVICE._replace(is_insecure=True), "open_to_everybody", "warning", "no API key"),
        (SERVICE._replace(keys_error="line 3"), "keys_stale", "fault", "line 3"),
        (
            SERVICE._replace(tls=(TlsFacts("server", error="no key"),)),
            "certificate_stale",
            "fault",
            "no key",
        ),
        (
            SERVICE._replace(tls=(TlsFacts("server", 86400.0),)),
            "certificate_ends",
            "warning",
            "expires in 1.0 days",
        ),
        (
            SERVICE._replace(tls=(TlsFacts("client", -86400.0),)),
            "certificate_ends",
            "fault",
            "expired 1.0 days ago",
        ),
        (a_peer(connected=False, last_error="gone"), "peer_unreachable", "fault", "gone"),
        (a_peer(is_self=True), "peer_is_self", "note", "this process"),
        (a_peer(divergence_reservations=4), "peer_differs", "warning", "4 reservations"),
        (a_peer(seconds_since_last_frame=30.0), "peer_silent", "warning", "30 s"),
        (SERVICE._replace(state_failures=3), "state_not_kept", "fault", "3 writes"),
        (SERVICE._replace(snapshot_failures=2), "snapshot_not_kept", "fault", "none was written"),
        (SERVICE._replace(recovery_failed=True), "recovery_failed", "warning", "no peer"),
        (a_source(error="no such file"), "source_unread", "fault", "no such file"),
        (a_source(refused=2, withheld=1), "source_refused", "warning", "2 refused, 1 withheld"),
    ],
)
def test_each_fact_about_the_service_is_one_finding(facts, code, severity, text):
    (finding,) = service_findings.find_service_faults(facts)
    assert (finding.code, finding.severity) == (code, severity)
    assert text in finding.text


def test_a_snapshot_that_failed_and_then_went_well_is_no_finding():
    facts = SERVICE._replace(snapshot_failures=2, snapshot_age_s=30.0, snapshot_interval_s=60.0)
    assert service_findings.find_service_faults(facts) == []


def test_every_code_is_explained():
    rows = re.findall(r"^\|`(\w+)`\|(\w+)\|", DOCS.read_text(), re.MULTILINE)
    assert dict(rows) == {code: each.severity for code, each in FINDING_CODES.items()}
    assert {each.severity for each in FINDING_CODES.values()} == {*get_args(Severity)}
