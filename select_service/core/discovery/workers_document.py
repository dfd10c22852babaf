"""The document of a file of workers: a list of records, or `workers` with `defaults`."""

from typing import Any

import msgspec

from select_service.bodies.workers import WorkerRegistration
from select_service.core.discovery.records import desired_of, record_of
from select_service.shape_errors import converted


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    workers: list[dict[str, Any]]
    defaults: dict[str, Any] = msgspec.field(default_factory=dict)


def workers_of(document: object) -> dict[int, WorkerRegistration]:
    """By id.  Raises ValueError with one line that says which record is wrong, and in what."""
    if document is None:
        raise ValueError("it is empty; `workers: []` says that there are none")
    if isinstance(document, list):
        document = {"workers": document}
    found = converted(document, _Document)
    return desired_of(
        _record(number, found.defaults | fields) for number, fields in enumerate(found.workers, 1)
    )


def _record(number: int, fields: dict[str, Any]) -> WorkerRegistration:
    """Raises ValueError."""
    try:
        return record_of(fields)
    except ValueError as error:
        named = fields.get("worker_id")
        which = f"worker {named}" if named is not None else f"record {number}"
        raise ValueError(f"{which}: {error}") from None
