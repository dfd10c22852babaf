"""What is wrong with a worker: its facts -> findings, one for each cause.

What follows from a finding is not another one: of a rank that is not connected nobody says that it
is silent.
"""

from collections.abc import Iterator

from select_service.bodies.doctor import Finding
from select_service.core.doctor.codes import CODES
from select_service.core.doctor.facts import RankFacts, WorkerFacts

HTTP_CLOCK_S_MAX = 3.0
"""HTTP tells whole seconds, and the answer takes a while."""
EVENT_CLOCK_S_MAX = 2.0
CLOCK_S_SANE = 30 * 86400.0
"""Farther off it is no clock of days that an engine writes into its events."""
SILENT_S_MAX = 600.0
"""Without an event though there are requests."""
NOT_INDEXED = ("frames", "rank", "replay_of_other_rank")
"""Why events are dropped where something is registered wrong."""


def findings_of(facts: WorkerFacts) -> list[Finding]:
    """By cause, the heaviest of a kind first; none: nothing is wrong."""
    if not facts.is_schedulable:
        return [_of(facts, "worker_incomplete", f"gets no requests: {'; '.join(facts.reasons)}")]
    found = [*_state(facts), *_engine(facts), *_checks(facts), *_probed(facts)]
    is_wrong_size = any(finding.code == "block_size_differs" for finding in found)
    for rank in facts.ranks:
        of_rank = list(_rank(facts, rank))
        found += [f for f in of_rank if not (is_wrong_size and f.code == "block_size_differs")]
        is_wrong_size |= any(f.code == "block_size_differs" for f in of_rank)
    if is_wrong_size:  # nothing is indexed, so nothing is found
        found = [f for f in found if f.code not in ("blocks_not_found", "predictions_wrong")]
    if not any(f.code == "clock_off" for f in found):
        found += _clock(facts)
    return found


def _state(facts: WorkerFacts) -> Iterator[Finding]:
    if facts.is_cut_short:
        yield _of(facts, "not_examined", "was not examined to the end: the time was over")
    if facts.drain is not None:
        askers, left = " and ".join(facts.drain.asked_by), facts.drain.reservations
        yield _of(facts, "worker_drains", f"drains for the {askers}; {left} reservations are left")
    if facts.n_ranks > len(facts.ranks):
        shown, every = len(facts.ranks), facts.n_ranks
        yield _of(facts, "ranks_left_out", f"only the first {shown} of {every} ranks were examined")


def _engine(facts: WorkerFacts) -> Iterator[Finding]:
    where = facts.endpoint
    if facts.endpoint_error is not None:
        yield _of(facts, "engine_unreachable", f"{where}: {facts.endpoint_error}")
    elif facts.http_error is not None:
        yield _of(facts, "engine_no_answer", f"{where} is open, but: {facts.http_error}")
    said = facts.said
    if said is None:
        return
    if said.engine is None:
        yield _of(facts, "engine_unknown", f"{where} answers neither as vLLM nor as SGLang")
    if said.block_size is not None and said.block_size != facts.block_size:
        text = f"registered with block_size {facts.block_size}, the engine has {said.block_size}"
        yield _of(facts, "block_size_differs", text)
    if said.model_names and facts.model_name not in said.model_names:
        names = ", ".join(said.model_names[:3])
        text = f"registered for the model `{facts.model_name}`, the engine serves `{names}`"
        yield _of(facts, "model_name_differs", text)
    ranks = said.data_parallel_size
    if ranks is not None and ranks > 1 and ranks != facts.data_parallel_size:
        text = f"registered with {facts.data_parallel_size} ranks, the engine has {ranks}"
        yield _of(facts, "ranks_differ", text)


def _checks(facts: WorkerFacts) -> Iterator[Finding]:
    if facts.check_refused:
        text = (
            f"{facts.endpoint} refuses health checks for the model `{facts.model_name}`, so its "
            f"health is not known: {facts.check_refused}"
        )
        yield _of(facts, "check_refused", text)


def _probed(facts: WorkerFacts) -> Iterator[Finding]:
    probed = facts.probed
    if probed is None or facts.endpoint_error or facts.http_error:
        return
    if probed.error is not None:
        yield _of(facts, "probe_refused", f"a prompt of token ids: {probed.error}")
    elif probed.blocks and not probed.found and any(_has_events(rank) for rank in facts.ranks):
        text = (
            f"the engine answered a prompt of {probed.blocks} blocks, and none of them is in the "
            f"index after {probed.waited_s:.1f} s, though it publishes events"
        )
        yield _of(facts, "blocks_not_found", text)


def _has_events(rank: RankFacts) -> bool:
    return rank.status is not None and rank.status.connected and rank.status.batches > 0


def _rank(facts: WorkerFacts, rank: RankFacts) -> Iterator[Finding]:
    yield from _events(facts, rank)
    yield from _replay(facts, rank)


def _events(facts: WorkerFacts, rank: RankFacts) -> Iterator[Finding]:
    status, where, at = rank.status, rank.events_endpoint, rank.dp_rank
    if status is None:
        return
    if not status.connected:
        long = rank.unconnected_s
        since = "" if long is None else f"; unconnected for {long:.0f} s"
        if rank.events_error is not None:
            yield _of(facts, "events_unreachable", f"{where}: {rank.events_error}{since}", at)
        else:
            why = status.connect_error or "there is no connection of ZMQ"
            yield _of(facts, "events_not_connected", f"{where} is open, but: {why}{since}", at)
        return
    if status.is_size_wrong:
        text = _wrong_size(facts, rank)
        yield _of(facts, "block_size_differs", text, at)
    wrong = {why: n for why, n in status.dropped.items() if n and why in NOT_INDEXED}
    if wrong:
        counts = ", ".join(f"{n} by `{why}`" for why, n in sorted(wrong.items()))
        yield _of(facts, "events_not_indexed", f"events were dropped: {counts}", at)
    if status.decode_errors:
        text = f"{status.decode_errors} could not be read, last: {status.last_error}"
        yield _of(facts, "events_unreadable", text, at)
    if status.degraded is not None or status.lost:
        why = status.degraded or "replays have not brought them back"
        text = f"{status.lost} batches of {status.batches + status.lost} are lost: {why}"
        yield _of(facts, "events_lost", text, at)
    elif (silence := _silence(facts, rank)) is not None:
        yield _of(facts, "events_silent", silence, at)
    elif rank.predictions is not None and rank.predictions.suspect:
        known = rank.predictions
        text = (
            f"of what {known.checks} prompts had to leave in its cache it announced "
            f"{known.trust or 0.0:.0%}: {known.suspect}"
        )
        yield _of(facts, "predictions_wrong", text, at)


def _wrong_size(facts: WorkerFacts, rank: RankFacts) -> str:
    assert rank.status is not None
    sizes = () if rank.replay is None else rank.replay.block_sizes
    others = sorted({size for size in sizes if size != facts.block_size})
    seen = f": its blocks have {', '.join(map(str, others))} tokens" if others else ""
    n = rank.status.dropped.get("block_size", 0)
    return (
        f"registered with block_size {facts.block_size}, and {n} events have another and none has "
        f"this one{seen}"
    )


def _silence(facts: WorkerFacts, rank: RankFacts) -> str | None:
    """Why it should have published something, if it should."""
    status, probed = rank.status, facts.probed
    assert status is not None
    if status.batches == 0:
        if probed is not None and probed.error is None and len(facts.ranks) == 1:
            return f"connected, and no event {probed.waited_s:.1f} s after the answer to a prompt"
        if rank.requests:
            return f"connected, and no event though {rank.requests} requests are on it"
        if rank.predictions is not None and rank.predictions.checks:
            return f"connected, and no event after {rank.predictions.checks} prompts"
    elif rank.requests and rank.silent_s is not None and rank.silent_s > SILENT_S_MAX:
        return f"no event for {rank.silent_s:.0f} s though {rank.requests} requests are on it"
    return None


def _replay(facts: WorkerFacts, rank: RankFacts) -> Iterator[Finding]:
    replay, where, at = rank.replay, rank.replay_endpoint, rank.dp_rank
    if rank.status is None or not rank.status.connected:
        return
    if rank.replay_endpoint is None:
        yield _of(facts, "replay_missing", "no replay endpoint is registered", at)
    elif replay is not None and replay.error is not None:
        code = "replay_silent" if replay.reached else "replay_unreachable"
        yield _of(facts, code, f"{where}: {replay.error}", at)
    if replay is None:
        return
    if replay.checked and not replay.found and rank.status.degraded is None:
        text = (
            f"none of {replay.checked} blocks that it announced last is found by the tokens that "
            "it announced them with"
        )
        yield _of(facts, "blocks_not_found", text, at)
    off = replay.clock_s
    if off is not None and EVENT_CLOCK_S_MAX < abs(off) < CLOCK_S_SANE:
        yield _of(facts, "clock_off", f"its clock is {_ahead(off)} of ours, by its events", at)


def _clock(facts: WorkerFacts) -> Iterator[Finding]:
    off = facts.clock_s
    if off is not None and abs(off) > HTTP_CLOCK_S_MAX:
        yield _of(facts, "clock_off", f"its clock is {_ahead(off)} of ours, by its HTTP")


def _ahead(seconds: float) -> str:
    return f"{abs(seconds):.1f} s {'ahead' if seconds > 0 else 'behind'}"


def _of(facts: WorkerFacts, code: str, text: str, dp_rank: int | None = None) -> Finding:
    severity, fix = CODES[code]
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
