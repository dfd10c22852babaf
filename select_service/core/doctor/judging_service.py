"""What is wrong with the service itself: its facts -> findings."""

from collections.abc import Iterator

from select_service.bodies.discovery import SourceView
from select_service.bodies.doctor import Finding, Machine, Severity
from select_service.bodies.replicas import ReplicaPeer
from select_service.core.doctor.codes import CODES
from select_service.core.doctor.facts import ServiceFacts

SHORT, NEARLY_OUT = 0.8, 0.95
"""Parts of a limit: from the first on a warning, from the second on a fault."""
STOLEN_MAX = 0.05
THROTTLED_MAX = 0.1
LATE_MS_MAX = 10.0
"""In the mean."""
STOOD_MS_MAX = 250.0
PEER_SILENT_S_MAX = 5.0
"""Digests come every second."""
DIVERGENCE_MIN = 1
SNAPSHOT_LATE = 3.0
"""So many intervals without one."""
DAY_S = 86400.0
CERTIFICATE_S_MIN = 14 * DAY_S
THIS_ONE = "this one"
GIB = 2**30


def findings_of(facts: ServiceFacts) -> list[Finding]:
    """Of the process and its host first, then of what it is joined with."""
    found = [*_machine(facts.machine), *_access(facts), *_kept(facts)]
    for peer in facts.peers:
        found += _peer(peer)
    for source in facts.sources:
        found += _source(source)
    if not facts.schedulable:
        registered = {
            0: "no worker is registered",
            1: "1 worker is registered and cannot be chosen",
        }
        several = f"{facts.workers} workers are registered, none of them can be chosen"
        text = registered.get(facts.workers, several)
        found.append(_of("no_workers", text))
    return found


def _machine(machine: Machine) -> Iterator[Finding]:
    used, most = machine.descriptors, machine.descriptors_max
    if most and (severity := _severity(used / most)):
        text = f"{used} of {most} file descriptors are in use ({used / most:.0%})"
        yield _of("descriptors_short", text, severity=severity)
    bytes_max = machine.memory_bytes_max
    if bytes_max and (severity := _severity(machine.memory_bytes / bytes_max)):
        part = machine.memory_bytes / bytes_max
        text = (
            f"{machine.memory_bytes / GIB:.1f} of {bytes_max / GIB:.1f} GiB of memory ({part:.0%})"
        )
        yield _of("memory_short", text, severity=severity)
    if machine.cpu_stolen is not None and machine.cpu_stolen > STOLEN_MAX:
        yield _of("cpu_stolen", f"{machine.cpu_stolen:.0%} of the CPU time went to other machines")
    if machine.cpu_throttled is not None and machine.cpu_throttled > THROTTLED_MAX:
        text = f"held back by its CPU limit in {machine.cpu_throttled:.0%} of the periods"
        yield _of("cpu_throttled", text)
    if machine.loop_late_ms > LATE_MS_MAX or machine.loop_late_ms_max > STOOD_MS_MAX:
        text = (
            f"turns of the event loop were {machine.loop_late_ms:.1f} ms late in the mean, "
            f"{machine.loop_late_ms_max:.0f} ms at most"
        )
        yield _of("loop_late", text)
    if machine.processor != THIS_ONE:
        yield _of("kernels_generic", f"the kernels are compiled for `{machine.processor}`")


def _severity(part: float) -> Severity | None:
    if part < SHORT:
        return None
    return "fault" if part >= NEARLY_OUT else "warning"


def _access(facts: ServiceFacts) -> Iterator[Finding]:
    if facts.is_insecure:
        yield _of("open_to_everybody", "others can reach the address, and no key is asked for")
    for tls in facts.tls:
        if tls.error is not None:
            yield _of("certificate_stale", f"the files of the {tls.side} are wrong: {tls.error}")
        if tls.left_s is not None and tls.left_s < CERTIFICATE_S_MIN:
            text = f"the certificate of the {tls.side} ends in {tls.left_s / DAY_S:.1f} days"
            is_over = tls.left_s <= 0.0
            ended = f"the certificate of the {tls.side} ended {-tls.left_s / DAY_S:.1f} days ago"
            severity: Severity = "fault" if is_over else "warning"
            yield _of("certificate_ends", ended if is_over else text, severity=severity)
    if facts.keys_error is not None:
        yield _of("keys_stale", f"the file of keys is wrong, older keys count: {facts.keys_error}")


def _kept(facts: ServiceFacts) -> Iterator[Finding]:
    if facts.state_failures:
        text = f"{facts.state_failures} times the state file could not be written"
        yield _of("state_not_kept", text)
    age, interval = facts.snapshot_age_s, facts.snapshot_interval_s
    if facts.snapshot_failures and (age is None or age > SNAPSHOT_LATE * interval):
        last = "none was written" if age is None else f"the last one is {age:.0f} s old"
        text = f"{facts.snapshot_failures} snapshots could not be written, {last}"
        yield _of("snapshot_not_kept", text)
    if facts.recovery_failed:
        yield _of("recovery_failed", "nobody gave the index at the start")


def _peer(peer: ReplicaPeer) -> Iterator[Finding]:
    subject, silent_s = f"peer {peer.endpoint}", peer.seconds_since_last_frame
    if peer.is_self:
        yield _of("peer_is_self", "it is this process", subject)
    elif not peer.connected:
        yield _of("peer_unreachable", peer.last_error or "there is no connection", subject)
    elif silent_s is not None and silent_s > PEER_SILENT_S_MAX:
        yield _of("peer_silent", f"connected, and nothing came for {silent_s:.0f} s", subject)
    elif peer.divergence_reservations >= DIVERGENCE_MIN:
        text = (
            f"{peer.divergence_reservations} reservations and "
            f"{peer.divergence_prefill_tokens} prefill tokens differ"
        )
        yield _of("peer_differs", text, subject)


def _source(source: SourceView) -> Iterator[Finding]:
    subject = f"source {source.name}"
    if source.error is not None:
        yield _of("source_unread", f"{source.place}: {source.error}", subject)
    counts = {
        "refused": source.refused,
        "of somebody else": source.conflicts,
        "withheld": source.withheld,
    }
    wrong = ", ".join(f"{n} {what}" for what, n in counts.items() if n)
    if wrong:
        yield _of("source_refused", f"of its workers: {wrong}", subject)


def _of(
    code: str, text: str, subject: str = "service", severity: Severity | None = None
) -> Finding:
    usual, fix = CODES[code]
    return Finding(code=code, severity=severity or usual, subject=subject, text=text, fix=fix)
