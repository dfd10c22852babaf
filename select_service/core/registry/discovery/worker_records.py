"""Worker records of sources, validated like POST /workers.

A record has the fields of POST /workers. Without a `worker_id` the id is derived from the endpoint,
equally at every replica and after every restart.
"""

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

import msgspec
from msgspec import inspect
from xxhash import xxh3_64_intdigest

from select_service.base.errors import BadRequest, InvalidBody
from select_service.base.shape_errors import readable_error
from select_service.base.suggestions import nearest_name, printable_name
from select_service.core.workers.worker_catalog import WORKERS_MAX, RegisteredWorker
from select_service.net.urls import metrics_url_error
from select_service.schemas.workers import WorkerRegistration

_ID_BITS = 53
"""Bits of derived ids: every JSON reader supports integers of this size."""
_FIELDS = WorkerRegistration.__struct_fields__


def derive_worker_id(identity: str) -> int:
    """Derive a worker id from a name or an address."""
    # A hash, not a counter: all replicas must derive the same id without coordination.
    return xxh3_64_intdigest(identity.encode()) >> (64 - _ID_BITS)


def validate_record(fields: Mapping[str, Any]) -> WorkerRegistration:
    """Validate a record. Raises ValueError with one line that names the fault."""
    for name in fields:
        if name not in _FIELDS:
            meant = nearest_name(str(name), _FIELDS)
            end = "" if meant is None else f": did you mean `{meant}`?"
            raise ValueError(f"unknown field `{printable_name(str(name))}`{end}")
    complete = dict(fields)
    if complete.get("worker_id") is None:
        if not isinstance(complete.get("endpoint"), str):
            raise ValueError("`worker_id` is missing: give it, or an `endpoint` to derive it from")
        complete["worker_id"] = derive_worker_id(complete["endpoint"])
    for name, value in complete.items():
        if not _is_finite(value):
            raise ValueError(
                f"`{name}`: a number is not finite: give a finite number or omit the field"
            )
    try:
        # Via JSON, where keys are texts: in YAML the keys of rank tables may be numbers.
        record = msgspec.json.decode(msgspec.json.encode(complete), type=WorkerRegistration)
        RegisteredWorker(record)  # raises if the two tenant names differ, or for a rank key
    except msgspec.ValidationError as error:
        body = msgspec.json.encode(complete)
        raise ValueError(
            readable_error(error, body, inspect.type_info(WorkerRegistration))
        ) from None
    except (msgspec.MsgspecError, BadRequest, InvalidBody, TypeError, OverflowError) as error:
        raise ValueError(str(error)) from None
    error_text = metrics_url_error(record.metrics_endpoint) if record.metrics_endpoint else None
    if error_text is not None:
        raise ValueError(f"metrics_endpoint: {error_text}")
    return record


def _is_finite(value: object) -> bool:
    """Return whether all numbers are finite; JSON would turn others into null, with another
    meaning.
    """
    if isinstance(value, dict | list):
        return all(map(_is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or isfinite(value)


def index_by_id(records: Iterable[WorkerRegistration]) -> dict[int, WorkerRegistration]:
    """Return records by id. Raises ValueError for duplicate ids and for too many workers."""
    desired: dict[int, WorkerRegistration] = {}
    for record in records:
        if record.worker_id in desired:
            raise ValueError(
                f"two workers have the worker_id {record.worker_id}: give each its own"
            )
        desired[record.worker_id] = record
    if len(desired) > WORKERS_MAX:
        raise ValueError(f"{len(desired)} workers are listed, at most {WORKERS_MAX} are allowed")
    return desired
