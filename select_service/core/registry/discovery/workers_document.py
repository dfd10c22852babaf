"""Workers file: a list of records, or `workers` with `defaults`."""

from typing import Any

import msgspec

from select_service.base.shape_errors import convert_document
from select_service.core.registry.discovery.worker_records import index_by_id, validate_record
from select_service.schemas.workers import WorkerRegistration


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    workers: list[dict[str, Any]]
    defaults: dict[str, Any] = msgspec.field(default_factory=dict)


def read_workers_document(document: object) -> dict[int, WorkerRegistration]:
    """Return records by id. Raises ValueError with one line that names record and fault."""
    if document is None:
        raise ValueError("the file is empty: write `workers: []` for no workers")
    if isinstance(document, list):
        document = {"workers": document}
    found = convert_document(document, _Document)
    return index_by_id(
        _validate_numbered_record(number, found.defaults | fields)
        for number, fields in enumerate(found.workers, 1)
    )


def _validate_numbered_record(number: int, fields: dict[str, Any]) -> WorkerRegistration:
    """Validate one record. Raises ValueError."""
    try:
        return validate_record(fields)
    except ValueError as error:
        named = fields.get("worker_id")
        which = f"worker {named}" if named is not None else f"record {number}"
        raise ValueError(f"{which}: {error}") from None
