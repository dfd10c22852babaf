"""Difference between a worker in the catalog and its source.

A source owns its fields: only fields that the source changed since its last application are
written. A change made by an operator therefore stays until the source changes the same field.
"""

from typing import TypeAlias

import msgspec

from select_service.schemas.workers import WorkerPatch, WorkerRegistration

WorkerChange: TypeAlias = WorkerPatch | WorkerRegistration
"""Patch if possible, else a complete record."""

_FIELDS = WorkerRegistration.__struct_fields__
_PATCHABLE = frozenset(WorkerPatch.__struct_fields__)


def diff_worker(
    previous: WorkerRegistration, current: WorkerRegistration, registered: WorkerRegistration
) -> WorkerChange | None:
    """Return the change to apply; None means no change.

    said, says: earlier and current fields of the source
    registered: fields in the catalog
    """
    changes = {
        name: value
        for name in _FIELDS
        # Compared with the source's earlier record, not with the catalog: see the module text.
        if (value := getattr(current, name)) != getattr(previous, name)
        and value != getattr(registered, name)
    }
    if not changes:
        return None
    # A patch cannot clear a field, since None means unchanged there.
    if all(name in _PATCHABLE and value is not None for name, value in changes.items()):
        return WorkerPatch(**changes)
    return msgspec.structs.replace(registered, **changes)
