"""Reader of decision logs: the last requests of a model and tenant, and their ranks."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from select_service.base.command_line import file_error_text
from select_service.core.analysis.decision_log_lines import (
    HASH_DIGITS,
    LoggedDecision,
    LoggedFleet,
    LogHead,
    LogLine,
)
from select_service.core.identity import PartitionKey

LINE_BYTES_MAX = 1 << 20
"""Longest line. A prompt of 2,048 hashes has 33 KB, a fleet of 1,024 ranks some 120 KB."""
TOKENS_MAX = 1 << 24
"""Longest prompt or answer, in tokens."""
UNIX_S_MAX = 1e11
PARTITIONS_MAX = 256
"""Limit of distinct model and tenant pairs; further pairs are ignored."""


class ReplayError(Exception):
    """Reason why there is nothing to replay, in one line."""


class LogFilter(NamedTuple):
    """Filter of a log.

    model_name, tenant_id: None means the pair with the most requests;  requests: limit, from the
    end
    """

    model_name: str | None
    tenant_id: str | None
    requests: int


class LoggedRequests(NamedTuple):
    """Records of a model and tenant.

    `unbooked`: decisions without a reservation, which have no hashes.
    """

    fleet: LoggedFleet
    decisions: list[LoggedDecision]
    unbooked: int


class _LogReading:
    """Records read so far."""

    def __init__(self, wanted: LogFilter) -> None:
        self._wanted = wanted
        self._known: set[PartitionKey] = set()
        self._fleets: dict[PartitionKey, LoggedFleet] = {}
        self._decisions: dict[PartitionKey, deque[LoggedDecision]] = {}
        self._unbooked: Counter[PartitionKey] = Counter()

    def take_line(self, line: LogLine) -> None:
        if isinstance(line, LogHead):
            return
        key = PartitionKey(line.model_name, line.tenant_id)
        if not key.matches(self._wanted.model_name, self._wanted.tenant_id):
            return
        if key not in self._known and len(self._known) >= PARTITIONS_MAX:
            return
        self._known.add(key)
        if isinstance(line, LoggedFleet):
            self._fleets[key] = line
        elif line.reserved:
            # A bounded deque keeps the latest requests and the memory small.
            last = self._decisions.setdefault(key, deque(maxlen=self._wanted.requests))
            last.append(line)
        else:
            self._unbooked[key] += 1

    def busiest_partition(self) -> LoggedRequests:
        """Return the records of the model and tenant with the most requests.

        Raises ReplayError.
        """
        complete = [key for key in self._decisions if key in self._fleets]
        if not complete:
            some = "no decision with a reservation"
            raise ReplayError(some if self._decisions else f"{some} of this model and tenant")
        key = max(complete, key=lambda each: len(self._decisions[each]))
        fleet = self._fleets[key]
        same = [each for each in self._decisions[key] if each.block_size == fleet.block_size]
        # Logged when decided; requests that waited in the queue arrived earlier.
        decisions = sorted(same, key=lambda each: each.at - each.waited_s)
        if not decisions or not fleet.ranks:
            raise ReplayError(f"{key.model_name}, tenant {key.tenant_id}: no ranks, or no requests")
        return LoggedRequests(fleet, decisions, self._unbooked[key])


def read_logs(paths: Sequence[Path], wanted: LogFilter) -> LoggedRequests:
    """Read all files in order of their modification; the last file defines the fleet.

    Raises ReplayError.
    """
    reading = _LogReading(wanted)
    try:
        for path in sorted(paths, key=lambda each: each.stat().st_mtime_ns):
            with path.open("rb") as file:
                for line in _read_lines(path, file):
                    reading.take_line(line)
    except OSError as error:
        raise ReplayError(file_error_text(error.filename, error)) from None
    return reading.busiest_partition()


def _read_lines(path: Path, file: BinaryIO) -> Iterator[LogLine]:
    """Yield the lines of a file.  Raises ReplayError.

    The last line may be incomplete because a service is writing it.
    """
    decoder = msgspec.json.Decoder(LogLine)
    number = 0
    while text := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        is_whole = text.endswith(b"\n")
        # A line without a newline is still being written.
        if not is_whole and len(text) <= LINE_BYTES_MAX and number > 1:
            return
        try:
            line = decoder.decode(text)
            _check_line(line)
        except (ValueError, RecursionError) as error:
            advice = "; give a file of --decision-log" if number == 1 else ""
            raise ReplayError(f"{path}, line {number}: {error}{advice}") from None
        if number == 1 and not isinstance(line, LogHead):
            raise ReplayError(f"{path}: not a decision log: give a file of --decision-log")
        yield line


def _check_line(line: LogLine) -> None:
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
