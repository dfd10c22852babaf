"""What is to be changed of a worker so that it is what a source says now.

A source owns what it says: only fields whose value it has changed since it was last heeded are
written, so that what an operator has changed by hand stays until the source says something new of
the same field.
"""

from typing import TypeAlias

import msgspec

from select_service.bodies.workers import WorkerPatch, WorkerRegistration

Change: TypeAlias = WorkerPatch | WorkerRegistration
"""A patch where it can say it; else a whole record."""

_FIELDS = WorkerRegistration.__struct_fields__
_PATCHABLE = frozenset(WorkerPatch.__struct_fields__)


def change_of(
    said: WorkerRegistration, says: WorkerRegistration, stands: WorkerRegistration
) -> Change | None:
    """said, says: by the source, before and now;  stands: in the catalog.  None: nothing to do."""
    wanted = {
        name: value
        for name in _FIELDS
        if (value := getattr(says, name)) != getattr(said, name) and value != getattr(stands, name)
    }
    if not wanted:
        return None
    if all(name in _PATCHABLE and value is not None for name, value in wanted.items()):
        return WorkerPatch(**wanted)
    return msgspec.structs.replace(stands, **wanted)
