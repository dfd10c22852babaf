"""Reading decision logs: the last requests of one model and tenant, and the ranks they went to."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from select_service.command_line import file_fault
from select_service.core.decision_lines import (
    HASH_DIGITS,
    LoggedDecision,
    LoggedFleet,
    LogHead,
    LogLine,
)
from select_service.core.identity import PartitionKey

LINE_BYTES_MAX = 1 << 20
"""A prompt of 2,048 hashes has 33 KB, a fleet of 1,024 ranks some 120 KB."""
TOKENS_MAX = 1 << 24
"""Of a prompt or an answer."""
UNIX_S_MAX = 1e11
PARTITIONS_MAX = 256
"""Models with tenants that are told apart; of more the first ones count."""


class ReplayError(Exception):
    """One line that says why there is nothing to replay."""


class Wanted(NamedTuple):
    """model_name, tenant_id: None: the one with the most requests;  requests: the last, at most"""

    model_name: str | None
    tenant_id: str | None
    requests: int


class Logged(NamedTuple):
    """What the logs say of one model and tenant; `unbooked` decisions have no hashes."""

    fleet: LoggedFleet
    decisions: list[LoggedDecision]
    unbooked: int


class _Reading:
    """What was read so far."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._known: set[PartitionKey] = set()
        self._fleets: dict[PartitionKey, LoggedFleet] = {}
        self._decisions: dict[PartitionKey, deque[LoggedDecision]] = {}
        self._unbooked: Counter[PartitionKey] = Counter()

    def take(self, line: LogLine) -> None:
        if isinstance(line, LogHead):
            return
        key = PartitionKey(line.model_name, line.tenant_id)
        if not key.within(self._wanted.model_name, self._wanted.tenant_id):
            return
        if key not in self._known and len(self._known) >= PARTITIONS_MAX:
            return
        self._known.add(key)
        if isinstance(line, LoggedFleet):
            self._fleets[key] = line
        elif line.reserved:
            last = self._decisions.setdefault(key, deque(maxlen=self._wanted.requests))
            last.append(line)
        else:
            self._unbooked[key] += 1

    def found(self) -> Logged:
        """Of the model and tenant with the most requests.  Raises ReplayError."""
        complete = [key for key in self._decisions if key in self._fleets]
        if not complete:
            some = "no booked decision"
            raise ReplayError(some if self._decisions else f"{some} of that model and tenant")
        key = max(complete, key=lambda each: len(self._decisions[each]))
        fleet = self._fleets[key]
        same = [each for each in self._decisions[key] if each.block_size == fleet.block_size]
        decisions = sorted(same, key=lambda each: each.at - each.waited_s)
        if not decisions or not fleet.ranks:
            raise ReplayError(f"{key.model_name}, tenant {key.tenant_id}: no ranks, or no requests")
        return Logged(fleet, decisions, self._unbooked[key])


def read_logs(paths: Sequence[Path], wanted: Wanted) -> Logged:
    """The last file counts last for who is there.  Raises ReplayError."""
    reading = _Reading(wanted)
    try:
        for path in sorted(paths, key=lambda each: each.stat().st_mtime_ns):
            with path.open("rb") as file:
                for line in _lines_of(path, file):
                    reading.take(line)
    except OSError as error:
        raise ReplayError(file_fault(error.filename, error)) from None
    return reading.found()


def _lines_of(path: Path, file: BinaryIO) -> Iterator[LogLine]:
    """Raises ReplayError.  The last line may be cut short: a service is writing it."""
    decoder = msgspec.json.Decoder(LogLine)
    number = 0
    while text := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        is_whole = text.endswith(b"\n")
        if not is_whole and len(text) <= LINE_BYTES_MAX and number > 1:
            return
        try:
            line = decoder.decode(text)
            _check(line)
        except ValueError as error:
            advice = "; give a file of --decision-log" if number == 1 else ""
            raise ReplayError(f"{path}, line {number}: {error}{advice}") from None
        if number == 1 and not isinstance(line, LogHead):
            raise ReplayError(
                f"{path}: it does not begin as a decision log does; give a file of --decision-log"
            )
        yield line


def _check(line: LogLine) -> None:
    """Raises ValueError for numbers that no service writes."""
    if isinstance(line, LoggedDecision):
        bytes.fromhex(line.hashes)
        if len(line.hashes) % HASH_DIGITS:
            raise ValueError(f"`hashes`: expected {HASH_DIGITS} digits each")
        if not (0 < line.isl_tokens <= TOKENS_MAX and 0 <= (line.output_tokens or 0) <= TOKENS_MAX):
            raise ValueError(f"`isl_tokens`, `output_tokens`: expected {TOKENS_MAX} at most")
        if line.hash_blocks < 1 or not 0.0 <= line.at - line.waited_s <= line.at < UNIX_S_MAX:
            raise ValueError("`hash_blocks`, `at` or `waited_s` are out of range")
    if isinstance(line, LoggedDecision | LoggedFleet) and line.block_size < 1:
        raise ValueError("`block_size`: expected 1 or more")
