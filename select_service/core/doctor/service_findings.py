"""Findings about the service itself."""

from collections.abc import Iterator

from select_service.core.doctor.facts import PairFacts, ServiceFacts, SharedCacheFacts
from select_service.core.doctor.finding_codes import FINDING_CODES
from select_service.schemas.discovery import SourceView
from select_service.schemas.doctor import Finding, Machine, Severity
from select_service.schemas.replicas import ReplicaPeer

WARNING_SHARE, FAULT_SHARE = 0.8, 0.95
"""Shares of a limit from which on the finding is a warning, and a fault."""
STOLEN_MAX = 0.05
THROTTLED_MAX = 0.1
LATE_MS_MAX = 10.0
"""Maximum mean delay of the event loop, ms."""
PAUSE_MS_MAX = 250.0
PEER_SILENT_S_MAX = 5.0
"""Maximum time without a message from a peer, s; digests come every second."""
DIVERGENCE_MIN = 1
SNAPSHOT_LATE = 3.0
"""Number of intervals without a snapshot."""
LOOKUPS_MIN = 50
"""Answered look-ups after which a shared cache without any match is a finding."""
REUSED_SHARE_MIN = 0.05
"""Share of looked-up tokens that workers held themselves, from which a shared cache without any
match is a finding: prompts that repeat nowhere match nowhere.
"""
FIRST_TOKENS_MIN = 20
"""Transfers after which missing first tokens are a finding."""
DAY_S = 86400.0
CERTIFICATE_S_MIN = 14 * DAY_S
THIS_PROCESSOR = "this one"
GIB = 2**30


def find_service_faults(facts: ServiceFacts) -> list[Finding]:
    """Return findings about process and host first, then about connected systems."""
    found = [
        *_machine_findings(facts.machine),
        *_access_findings(facts),
        *_persistence_findings(facts),
    ]
    for peer in facts.peers:
        found += _peer_findings(peer)
    for source in facts.sources:
        found += _source_findings(source)
    found += _pair_findings(facts.pairs)
    for cache in facts.shared_caches:
        found += _shared_cache_findings(cache)
    for name in facts.unpriced_sources:
        text = f"--kv-sources is on, and no rank of {name} has a known price of moving a token"
        found.append(_make_finding("kv_sources_unpriced", text))
    if not facts.schedulable:
        registered = {
            0: "no worker is registered",
            1: "1 worker is registered, and is not schedulable",
        }
        several = f"{facts.workers} workers are registered, none of them is schedulable"
        text = registered.get(facts.workers, several)
        found.append(_make_finding("no_workers", text))
    return found


def _pair_findings(pairs: PairFacts) -> Iterator[Finding]:
    for name in pairs.without_decode:
        yield _make_finding(
            "prefill_without_decode",
            f"all workers of {name} have the role `prefill`",
        )
    if not pairs.decisions:
        return
    if pairs.unknown_links:
        yield _make_finding(
            "link_unknown",
            f"{pairs.decisions} pairs were chosen, and {pairs.unknown_links} workers have no known "
            "price of moving a token",
        )
    for name, kinds in pairs.connectors.items():
        yield _make_finding(
            "connectors_differ",
            f"workers of {name} have the connectors {', '.join(kinds)}",
        )
    if not pairs.first_tokens and pairs.unreported >= FIRST_TOKENS_MIN:
        yield _make_finding(
            "first_tokens_unreported",
            f"none of {pairs.unreported} pairs had its first token reported",
        )


def _machine_findings(machine: Machine) -> Iterator[Finding]:
    used, most = machine.descriptors, machine.descriptors_max
    if most and (severity := _severity_of_share(used / most)):
        text = f"{used} of {most} file descriptors are in use ({used / most:.0%})"
        yield _make_finding("descriptors_short", text, severity=severity)
    bytes_max = machine.memory_bytes_max
    if bytes_max and (severity := _severity_of_share(machine.memory_bytes / bytes_max)):
        part = machine.memory_bytes / bytes_max
        text = (
            f"{machine.memory_bytes / GIB:.1f} of {bytes_max / GIB:.1f} GiB of memory ({part:.0%})"
        )
        yield _make_finding("memory_short", text, severity=severity)
    if machine.cpu_stolen is not None and machine.cpu_stolen > STOLEN_MAX:
        yield _make_finding(
            "cpu_stolen",
            f"{machine.cpu_stolen:.0%} of the CPU time was taken by other virtual machines",
        )
    if machine.cpu_throttled is not None and machine.cpu_throttled > THROTTLED_MAX:
        text = f"throttled by the CPU limit in {machine.cpu_throttled:.0%} of the periods"
        yield _make_finding("cpu_throttled", text)
    if machine.loop_late_ms > LATE_MS_MAX or machine.loop_late_ms_max > PAUSE_MS_MAX:
        text = (
            f"the event loop is {machine.loop_late_ms:.1f} ms late on average, "
            f"{machine.loop_late_ms_max:.0f} ms at most"
        )
        yield _make_finding("loop_late", text)
    if machine.processor != THIS_PROCESSOR:
        yield _make_finding(
            "kernels_generic", f"the kernels are compiled for `{machine.processor}`"
        )


def _severity_of_share(part: float) -> Severity | None:
    if part < WARNING_SHARE:
        return None
    return "fault" if part >= FAULT_SHARE else "warning"


def _access_findings(facts: ServiceFacts) -> Iterator[Finding]:
    if facts.is_insecure:
        yield _make_finding(
            "open_to_everybody", "other hosts can reach the address, and no API key is required"
        )
    for tls in facts.tls:
        if tls.error is not None:
            yield _make_finding(
                "certificate_stale",
                f"the {tls.side}'s certificate files are invalid, the previous ones are in use: "
                f"{tls.error}",
            )
        if tls.left_s is not None and tls.left_s < CERTIFICATE_S_MIN:
            text = f"the certificate of the {tls.side} expires in {tls.left_s / DAY_S:.1f} days"
            is_over = tls.left_s <= 0.0
            ended = f"the certificate of the {tls.side} expired {-tls.left_s / DAY_S:.1f} days ago"
            severity: Severity = "fault" if is_over else "warning"
            yield _make_finding("certificate_ends", ended if is_over else text, severity=severity)
    if facts.keys_error is not None:
        yield _make_finding(
            "keys_stale",
            f"the API key file is invalid, the previous keys are in use: {facts.keys_error}",
        )


def _persistence_findings(facts: ServiceFacts) -> Iterator[Finding]:
    if facts.state_failures:
        text = f"{facts.state_failures} writes of the state file failed"
        yield _make_finding("state_not_kept", text)
    age, interval = facts.snapshot_age_s, facts.snapshot_interval_s
    if facts.snapshot_failures and (age is None or age > SNAPSHOT_LATE * interval):
        last = "none was written" if age is None else f"the latest one is {age:.0f} s old"
        text = f"{facts.snapshot_failures} writes of the snapshot failed, {last}"
        yield _make_finding("snapshot_not_kept", text)
    if facts.recovery_failed:
        yield _make_finding("recovery_failed", "no peer provided the index at start-up")


def _peer_findings(peer: ReplicaPeer) -> Iterator[Finding]:
    subject, silent_s = f"peer {peer.endpoint}", peer.seconds_since_last_frame
    if peer.is_self:
        yield _make_finding("peer_is_self", "the peer address is this process itself", subject)
    elif not peer.connected:
        yield _make_finding(
            "peer_unreachable", peer.last_error or "there is no connection", subject
        )
    # One finding per peer: a silent peer necessarily differs as well.
    elif silent_s is not None and silent_s > PEER_SILENT_S_MAX:
        yield _make_finding("peer_silent", f"connected, but silent for {silent_s:.0f} s", subject)
    elif peer.divergence_reservations >= DIVERGENCE_MIN:
        text = (
            f"{peer.divergence_reservations} reservations and "
            f"{peer.divergence_prefill_tokens} prefill tokens differ"
        )
        yield _make_finding("peer_differs", text, subject)


def _source_findings(source: SourceView) -> Iterator[Finding]:
    subject = f"source {source.name}"
    if source.error is not None:
        yield _make_finding("source_unread", f"{source.place}: {source.error}", subject)
    counts = {
        "refused": source.refused,
        "owned by others": source.conflicts,
        "withheld": source.withheld,
    }
    wrong = ", ".join(f"{n} {what}" for what, n in counts.items() if n)
    if wrong:
        yield _make_finding("source_refused", f"of its workers: {wrong}", subject)


def _shared_cache_findings(cache: SharedCacheFacts) -> Iterator[Finding]:
    subject = f"shared cache of {cache.model_name}"
    if cache.is_open or cache.without_answer > cache.lookups:
        reason = cache.last_error or "answers come later than --shared-cache-timeout-ms"
        yield _make_finding(
            "shared_cache_unreachable",
            f"{cache.url}: {cache.without_answer} of {cache.lookups + cache.without_answer} "
            f"look-ups without an answer in time: {reason}",
            subject,
        )
    reused = cache.reused_tokens / max(1, cache.prompt_tokens)
    if not cache.hits and cache.lookups >= LOOKUPS_MIN and reused >= REUSED_SHARE_MIN:
        yield _make_finding(
            "shared_cache_never_matches",
            f"none of {cache.lookups} look-ups found a block, "
            f"while workers held {reused:.0%} of the tokens of these prompts",
            subject,
        )
    if cache.hits and cache.unpriced:
        yield _make_finding(
            "shared_cache_unpriced",
            f"{cache.unpriced} ranks have no known price of fetching a token and get no credit",
            subject,
        )


def _make_finding(
    code: str, text: str, subject: str = "service", severity: Severity | None = None
) -> Finding:
    usual, fix = FINDING_CODES[code]
    return Finding(code=code, severity=severity or usual, subject=subject, text=text, fix=fix)
