"""What a source writes of a worker -> a registration, judged as POST /workers would.

A record has the fields of POST /workers.  Without a `worker_id` it gets one that is made of its
endpoint, the same at every replica and after every restart.
"""

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

import msgspec
from msgspec import inspect
from xxhash import xxh3_64_intdigest

from select_service.bodies.workers import WorkerRegistration
from select_service.core.workers.catalog import WORKERS_MAX, Worker
from select_service.errors import BadRequest
from select_service.shape_errors import in_words
from select_service.spelling import nearest, shown
from select_service.urls import metrics_url_error

_ID_BITS = 53
"""Of ids that are made: every program that reads JSON has integers as large as that."""
_FIELDS = WorkerRegistration.__struct_fields__


def made_id(identity: str) -> int:
    """A worker id for what is known by a name or an address only."""
    return xxh3_64_intdigest(identity.encode()) >> (64 - _ID_BITS)


def record_of(fields: Mapping[str, Any]) -> WorkerRegistration:
    """Raises ValueError with one line that says what is wrong."""
    for name in fields:
        if name not in _FIELDS:
            meant = nearest(str(name), _FIELDS)
            end = "" if meant is None else f": did you mean `{meant}`?"
            raise ValueError(f"unknown field `{shown(str(name))}`{end}")
    complete = dict(fields)
    if complete.get("worker_id") is None:
        if not isinstance(complete.get("endpoint"), str):
            raise ValueError("`worker_id` is missing, and no `endpoint` of which one can be made")
        complete["worker_id"] = made_id(complete["endpoint"])
    for name, value in complete.items():
        if not _is_finite(value):
            raise ValueError(f"`{name}`: a number is not finite: give one that is, or none")
    try:
        # By way of JSON, whose keys are texts: in YAML ranks may be numbers or texts.
        record = msgspec.json.decode(msgspec.json.encode(complete), type=WorkerRegistration)
        Worker(record)  # are the two names of its tenant one?
    except msgspec.ValidationError as error:
        body = msgspec.json.encode(complete)
        raise ValueError(in_words(error, body, inspect.type_info(WorkerRegistration))) from None
    except (msgspec.MsgspecError, BadRequest, TypeError, OverflowError) as error:
        raise ValueError(str(error)) from None
    error_text = metrics_url_error(record.metrics_endpoint) if record.metrics_endpoint else None
    if error_text is not None:
        raise ValueError(f"metrics_endpoint: {error_text}")
    return record


def _is_finite(value: object) -> bool:
    """JSON has no other numbers: they would become null, which means something else."""
    if isinstance(value, dict | list):
        return all(map(_is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or isfinite(value)


def desired_of(records: Iterable[WorkerRegistration]) -> dict[int, WorkerRegistration]:
    """By id.  Raises ValueError for one that is there twice, and for too many."""
    desired: dict[int, WorkerRegistration] = {}
    for record in records:
        if record.worker_id in desired:
            raise ValueError(f"two workers have the worker_id {record.worker_id}")
        desired[record.worker_id] = record
    if len(desired) > WORKERS_MAX:
        raise ValueError(f"{len(desired)} workers, and there may be {WORKERS_MAX}")
    return desired
