"""Sessions across restarts: rows of the file, and restoring sessions.

Bindings keep the versions, so that a restart wins over nothing that was bound meanwhile; idle
times go on while the process is down.  Live reservations are not persisted: a session in use comes
back without leases, as just used.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from select_service.core.identity import PartitionKey
from select_service.core.sessions.session_directory import SessionDirectory
from select_service.core.sessions.session_table import BindingVersion, SessionBinding
from select_service.schemas.common import NAME_CHARS_MAX, U64_MAX
from select_service.schemas.sessions import is_session_id

ROWS_PER_STEP = 256
"""Sessions read or restored per step, some 5 us each."""

_Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
_Unsigned = Annotated[int, Meta(ge=0)]


class PersistedSession(Struct, array_like=True, frozen=True, gc=False):
    """Session in the file.

    idle_s: seconds since the last use when the file was written
    """

    model_name: _Name
    tenant_id: _Name
    session_id: str
    worker_id: _Unsigned
    dp_rank: Annotated[int, Meta(ge=0, le=2**32 - 1)] | None
    sequence: _Unsigned
    writer_id: _Unsigned
    context_tokens: Annotated[int, Meta(ge=0, le=2**62)]
    idle_s: Annotated[float, Meta(ge=0.0)]

    @property
    def is_valid(self) -> bool:
        numbers = self.worker_id, self.sequence, self.writer_id
        return is_session_id(self.session_id) and max(numbers) <= U64_MAX


class RestoredSessions(NamedTuple):
    """Numbers of sessions: restored, too old, and without room."""

    restored: int
    dropped: int


def iterate_persisted(directory: SessionDirectory, now: float) -> Iterator[PersistedSession | None]:
    """Iterate over all sessions; None marks the end of a step."""
    for key, table in list(directory.tables()):
        rows = table.live_rows().tolist()
        for number, row in enumerate(rows, 1):
            if table.is_live(row):
                found = table.read_row(row)
                bound = found.binding
                idle_s = 0.0 if found.leases else max(0.0, now - found.idle_since)
                yield PersistedSession(
                    *key,
                    found.session_id,
                    bound.worker_id,
                    bound.dp_rank,
                    *bound.version,
                    bound.context_tokens,
                    round(idle_s, 3),
                )
            if number % ROWS_PER_STEP == 0:
                yield None


def restore_sessions(
    directory: SessionDirectory, rows: Iterable[PersistedSession], down_s: float, now: float
) -> Iterator[RestoredSessions | None]:
    """Restore sessions in steps; the last result has the numbers.

    down_s: seconds since the rows were written
    """
    restored = dropped = 0
    for number, row in enumerate(rows, 1):
        key = PartitionKey(row.model_name, row.tenant_id)
        # The size of a block is set by the first booking.
        table = directory.make_table(key, 0, now) if row.is_valid else None
        binding = SessionBinding(
            row.worker_id,
            row.dp_rank,
            BindingVersion(row.sequence, row.writer_id),
            row.context_tokens,
        )
        used_at = now - row.idle_s - max(0.0, down_s)
        if table is None or directory.apply_binding(table, row.session_id, binding, used_at, now):
            dropped += 1
        else:
            restored += 1
        if number % ROWS_PER_STEP == 0:
            yield None
    yield RestoredSessions(restored, dropped)
