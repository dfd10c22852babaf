"""Findings about a worker, one for each cause.

Consequences of a finding are not reported: for a rank without a connection, silence is none.
"""

from collections.abc import Iterator

from msgspec import UnsetType, json

from indexer.sockets.listener_status import ListenerStatus
from select_service.core.doctor.facts import EngineReportedFacts, RankFacts, WorkerFacts
from select_service.core.doctor.finding_codes import FINDING_CODES
from select_service.schemas.doctor import Finding

HTTP_CLOCK_S_MAX = 3.0
"""Maximum clock difference by HTTP, s: its dates have whole seconds, and the answer takes time."""
EVENT_CLOCK_S_MAX = 2.0
CLOCK_S_SANE = 30 * 86400.0
"""Clock difference from which on the event timestamps are no wall-clock times, s."""
SILENT_S_MAX = 600.0
"""Maximum time without an event despite requests, s."""
REPORTS_MIN, OVER_CLAIM_MAX = 32, 0.1
"""Minimum number of reports of cached tokens, and the share of expected tokens that may be missing.
"""
NOT_INDEXED = ("frames", "rank", "replay_of_other_rank")
"""Reasons of dropped events that indicate a wrong registration."""


def find_worker_faults(facts: WorkerFacts) -> list[Finding]:
    """Return findings by cause, heaviest of a kind first; empty if healthy."""
    # Everything else would be a consequence of the incomplete record.
    if not facts.is_schedulable:
        return [
            _make_finding(
                facts, "worker_incomplete", f"gets no requests: {'; '.join(facts.reasons)}"
            )
        ]
    found = [
        *_state_findings(facts),
        *_engine_findings(facts),
        *_check_findings(facts),
        *_probe_findings(facts),
    ]
    is_wrong_size = any(finding.code == "block_size_differs" for finding in found)
    for rank in facts.ranks:
        of_rank = list(_rank_findings(facts, rank))
        found += [f for f in of_rank if not (is_wrong_size and f.code == "block_size_differs")]
        # Reported once per worker: all ranks share the registered block size.
        is_wrong_size |= any(f.code == "block_size_differs" for f in of_rank)
    if is_wrong_size:  # nothing is indexed, so nothing is found
        found = [f for f in found if f.code not in ("blocks_not_found", "predictions_wrong")]
    if not any(f.code == "clock_off" for f in found):
        found += _clock_findings(facts)
    return found


def _state_findings(facts: WorkerFacts) -> Iterator[Finding]:
    if facts.is_cut_short:
        yield _make_finding(facts, "not_examined", "examination was cut short by the time limit")
    if facts.drain is not None:
        askers, left = " and ".join(facts.drain.asked_by), facts.drain.reservations
        yield _make_finding(
            facts, "worker_drains", f"drains on request of {askers}; {left} reservations are left"
        )
    if facts.n_ranks > len(facts.ranks):
        shown, every = len(facts.ranks), facts.n_ranks
        yield _make_finding(
            facts, "ranks_left_out", f"only the first {shown} of {every} ranks were examined"
        )


def _engine_findings(facts: WorkerFacts) -> Iterator[Finding]:
    where = facts.endpoint
    if facts.endpoint_error is not None:
        yield _make_finding(facts, "engine_unreachable", f"{where}: {facts.endpoint_error}")
    elif facts.http_error is not None:
        yield _make_finding(facts, "engine_no_answer", f"{where} is open, but: {facts.http_error}")
    description = facts.description
    if description is None:
        return
    if description.engine is None:
        yield _make_finding(
            facts, "engine_unknown", f"the answers of {where} match neither vLLM nor SGLang"
        )
    size = description.block_size
    # Events are closer to the cache than the engine's description of it.
    if size not in (None, facts.block_size) and not any(map(_has_registered_size, facts.ranks)):
        text = f"registered with block_size {facts.block_size}, the engine has {size}"
        yield _make_finding(facts, "block_size_differs", text)
    if description.model_names and facts.model_name not in description.model_names:
        names = ", ".join(description.model_names[:3])
        text = f"registered for the model `{facts.model_name}`, the engine serves `{names}`"
        yield _make_finding(facts, "model_name_differs", text)
    ranks = description.data_parallel_size
    if ranks is not None and ranks > 1 and ranks != facts.data_parallel_size:
        text = (
            f"registered with data_parallel_size {facts.data_parallel_size}, the engine has {ranks}"
        )
        yield _make_finding(facts, "ranks_differ", text)
    missing = _find_missing_cache_facts(facts, description)
    if missing:
        text = f"the engine reports {', '.join(missing)}, which the registration lacks"
        yield _make_finding(facts, "cache_facts_missing", text)


def _find_missing_cache_facts(facts: WorkerFacts, description: EngineReportedFacts) -> list[str]:
    """Return the engine's facts about its KV cache that nothing in the registration answers."""
    answered = {*facts.kv_cache}
    statuses = (rank.status for rank in facts.ranks)
    shows_lookahead = any(status is not None and status.lookahead_events for status in statuses)
    # Events with lookahead show that the engine drops nothing.
    if facts.is_eagle or shows_lookahead or "eagle_drop" in answered:
        answered |= {"speculates", "eagle_drop"}
    return [
        f"`{name}: {json.encode(value).decode()}`"
        for name, value in description.kv_cache.items()
        if name not in answered
    ]


def _check_findings(facts: WorkerFacts) -> Iterator[Finding]:
    if facts.check_refused:
        text = (
            f"{facts.endpoint} rejects health checks for the model `{facts.model_name}`, so its "
            f"health is unknown: {facts.check_refused}"
        )
        yield _make_finding(facts, "check_refused", text)
    if facts.lost:
        yield _make_finding(facts, "capacity_lost", f"gets no requests on {facts.lost}")


def _probe_findings(facts: WorkerFacts) -> Iterator[Finding]:
    probed = facts.probed
    if probed is None or facts.endpoint_error or facts.http_error:
        return
    if probed.error is not None:
        yield _make_finding(facts, "probe_refused", f"a prompt of token ids failed: {probed.error}")
    elif probed.blocks and not probed.found and any(_has_events(rank) for rank in facts.ranks):
        text = (
            f"the engine answered a prompt of {probed.blocks} blocks, and none of them is in the "
            f"index after {probed.waited_s:.1f} s, though it publishes events"
        )
        yield _make_finding(facts, "blocks_not_found", text)


def _has_registered_size(rank: RankFacts) -> bool:
    return rank.status is not None and rank.status.has_registered_size


def _has_events(rank: RankFacts) -> bool:
    return rank.status is not None and rank.status.connected and rank.status.batches > 0


def _rank_findings(facts: WorkerFacts, rank: RankFacts) -> Iterator[Finding]:
    yield from _event_findings(facts, rank)
    yield from _replay_findings(facts, rank)
    yield from _assumption_findings(facts, rank)


def _event_findings(facts: WorkerFacts, rank: RankFacts) -> Iterator[Finding]:
    status, where, at = rank.status, rank.events_endpoint, rank.dp_rank
    if status is None:
        return
    if not status.connected:
        long = rank.unconnected_s
        since = "" if long is None else f"; unconnected for {long:.0f} s"
        if rank.events_error is not None:
            yield _make_finding(
                facts, "events_unreachable", f"{where}: {rank.events_error}{since}", at
            )
        else:
            why = status.connect_error or "no ZMQ connection"
            yield _make_finding(
                facts, "events_not_connected", f"{where} is open, but: {why}{since}", at
            )
        return
    if status.is_size_wrong:
        text = _wrong_size(facts, rank)
        yield _make_finding(facts, "block_size_differs", text, at)
    wrong = {why: n for why, n in status.dropped.items() if n and why in NOT_INDEXED}
    if wrong:
        counts = ", ".join(f"{n} by `{why}`" for why, n in sorted(wrong.items()))
        yield _make_finding(facts, "events_not_indexed", f"events were dropped: {counts}", at)
    yield from _form_findings(facts, status, at)
    yield from _group_findings(facts, status, at)
    if status.decode_errors:
        text = (
            f"{status.decode_errors} events could not be decoded, latest error: {status.last_error}"
        )
        yield _make_finding(facts, "events_unreadable", text, at)
    if status.degraded is not None or status.lost:
        why = status.degraded or "replays did not recover them"
        text = f"{status.lost} batches of {status.batches + status.lost} are lost: {why}"
        yield _make_finding(facts, "events_lost", text, at)
    elif (silence := _explain_silence(facts, rank)) is not None:
        yield _make_finding(facts, "events_silent", silence, at)
    elif rank.predictions is not None and rank.predictions.suspect:
        predictions = rank.predictions
        text = (
            f"of the blocks that {predictions.checks} prompts should have cached, the engine "
            f"announced {predictions.trust or 0.0:.0%}: {predictions.suspect}"
        )
        yield _make_finding(facts, "predictions_wrong", text, at)


def _assumption_findings(facts: WorkerFacts, rank: RankFacts) -> Iterator[Finding]:
    found, reported, at = rank.assumptions, rank.reported, rank.dp_rank
    if found is not None and found.source == "assumed":
        what = f"{found.blocks} blocks are assumed because of bookings, and none is confirmed"
        if not isinstance(found.silent_s, UnsetType):
            text = f"{what}: no KV event for {found.silent_s:.0f} s with requests"
            yield _make_finding(facts, "index_assumed_silent", text, at)
        elif found.size_from == "reports" and reported is None:
            text = f"{what}, and neither its size nor cached tokens are reported: {found.size}"
            yield _make_finding(facts, "assumed_size_unknown", f"{text} blocks are kept", at)
        else:
            yield _make_finding(facts, "index_assumed", what, at)
    if reported is None or reported.reports < REPORTS_MIN or not reported.predicted_tokens:
        return
    share = reported.over_tokens / reported.predicted_tokens
    if share > OVER_CLAIM_MAX:
        text = (
            f"of {reported.predicted_tokens} prompt tokens expected in its cache, callers reported "
            f"{share:.0%} as not cached"
        )
        yield _make_finding(facts, "overlap_over_claimed", text, at)


def _form_findings(facts: WorkerFacts, status: ListenerStatus, at: int) -> Iterator[Finding]:
    """Yield findings about the form of events, which the engine chooses."""
    if status.unknown_fields:
        names = ", ".join(
            f"`{name}` {n} times" for name, n in sorted(status.unknown_fields.items())
        )
        yield _make_finding(facts, "unknown_event_fields", f"events have the fields {names}", at)
    if status.plain_eagle_events:
        text = (
            f"registered with `is_eagle`, but {status.plain_eagle_events} events have blocks alone"
        )
        yield _make_finding(facts, "eagle_events_plain", text, at)
    if status.lookahead_events:
        text = (
            f"the hashes of {status.lookahead_events} events cover tokens behind their blocks that "
            "the registration leaves out"
        )
        yield _make_finding(facts, "eagle_not_registered", text, at)
    if status.engine_changes:
        text = f"another engine took over the address, the last time {status.engine_change}"
        yield _make_finding(facts, "engine_replaced", text, at)


def _group_findings(facts: WorkerFacts, status: ListenerStatus, at: int) -> Iterator[Finding]:
    """Yield findings about the cache groups of a rank."""
    found = status.cache_groups
    if found is not None and found.is_bound:
        what = "may be too high or too low" if found.is_doubtful else "are upper bounds"
        text = f"overlaps {what}: {'; '.join(found.reasons)}"
        yield _make_finding(facts, "cache_groups_bounded", text, at)
    if found is not None and found.has_only_sparse_groups:
        kinds = ", ".join(sorted({group.kind for group in found.groups}))
        yield _make_finding(
            facts, "no_dense_group", f"no cache group is full attention, only {kinds}", at
        )
    if status.inside_block_events:
        text = (
            f"{status.inside_block_events} events are about the end of a prompt inside a block of "
            f"{facts.block_size} tokens"
        )
        yield _make_finding(facts, "ends_inside_blocks", text, at)


def _wrong_size(facts: WorkerFacts, rank: RankFacts) -> str:
    assert rank.status is not None
    sizes = () if rank.replay is None else rank.replay.block_sizes
    others = sorted({size for size in sizes if size != facts.block_size})
    seen = f": its blocks have {', '.join(map(str, others))} tokens" if others else ""
    n = rank.status.dropped.get("block_size", 0)
    return (
        f"registered with block_size {facts.block_size}, but {n} events have another size and none "
        f"has this size{seen}"
    )


def _explain_silence(facts: WorkerFacts, rank: RankFacts) -> str | None:
    """Return why the rank should have published events; None if silence is expected."""
    status, probed = rank.status, facts.probed
    assert status is not None
    if status.batches == 0:
        if probed is not None and probed.error is None and len(facts.ranks) == 1:
            return f"connected, but no event {probed.waited_s:.1f} s after the answer to a prompt"
        if rank.requests:
            return f"connected, but no event with {rank.requests} active requests"
        if rank.predictions is not None and rank.predictions.checks:
            return f"connected, but no event after {rank.predictions.checks} prompts"
    elif rank.requests and rank.silent_s is not None and rank.silent_s > SILENT_S_MAX:
        return f"no event for {rank.silent_s:.0f} s with {rank.requests} active requests"
    return None


def _replay_findings(facts: WorkerFacts, rank: RankFacts) -> Iterator[Finding]:
    replay, where, at = rank.replay, rank.replay_endpoint, rank.dp_rank
    if rank.status is None or not rank.status.connected:
        return
    if rank.replay_endpoint is None:
        yield _make_finding(facts, "replay_missing", "no replay endpoint is registered", at)
    elif replay is not None and replay.error is not None:
        code = "replay_silent" if replay.reached else "replay_unreachable"
        yield _make_finding(facts, code, f"{where}: {replay.error}", at)
    if replay is None:
        return
    if replay.checked and not replay.found and rank.status.degraded is None:
        text = (
            f"none of the {replay.checked} blocks announced last is found by the tokens in their "
            "own announcement"
        )
        yield _make_finding(facts, "blocks_not_found", text, at)
    off = replay.clock_s
    if off is not None and EVENT_CLOCK_S_MAX < abs(off) < CLOCK_S_SANE:
        yield _make_finding(
            facts,
            "clock_off",
            f"the engine's clock is {_describe_lead(off)} of ours, measured by its events",
            at,
        )


def _clock_findings(facts: WorkerFacts) -> Iterator[Finding]:
    off = facts.clock_s
    if off is not None and abs(off) > HTTP_CLOCK_S_MAX:
        yield _make_finding(
            facts,
            "clock_off",
            f"the engine's clock is {_describe_lead(off)} of ours, measured by HTTP",
        )


def _describe_lead(seconds: float) -> str:
    return f"{abs(seconds):.1f} s {'ahead' if seconds > 0 else 'behind'}"


def _make_finding(facts: WorkerFacts, code: str, text: str, dp_rank: int | None = None) -> Finding:
    severity, fix = FINDING_CODES[code]
    subject = f"worker {facts.worker_id}"
    fix = fix.replace("{worker_id}", str(facts.worker_id))
    finding = Finding(
        code=code,
        severity=severity,
        subject=subject,
        worker_id=facts.worker_id,
        text=text,
        fix=fix,
    )
    if dp_rank is not None:
        finding.dp_rank = dp_rank
        finding.subject = f"{subject} dp_rank {dp_rank}"
    return finding
