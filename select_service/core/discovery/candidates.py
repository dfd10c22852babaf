"""Engines that a source has found, and the records that come of them.

A candidate is what the source's template says of an engine; what it does not say, the engine is
asked for.  The template comes first.
"""

from collections.abc import Mapping
from typing import NamedTuple

from select_service.bodies.workers import WorkerRegistration
from select_service.core.discovery.engine_facts import streams
from select_service.core.discovery.records import made_id, record_of
from select_service.core.discovery.template import Fields


class Candidate(NamedTuple):
    """endpoint: of the engine
    fields:  of its record, the endpoint among them
    version: another one when another engine may stand behind the endpoint
    """

    endpoint: str
    fields: Fields
    version: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Of what the engine has said."""
        return self.endpoint, self.version

    @property
    def worker_id(self) -> int:
        given = self.fields.get("worker_id")
        return given if isinstance(given, int) else made_id(self.endpoint)


def completed(candidate: Candidate, said: Mapping[str, object]) -> WorkerRegistration:
    """said: by the engine, as fields of a record.  Raises ValueError with one line."""
    given = candidate.fields
    fields = {**said, **given}
    says_events = "kv_events_endpoint" in given and "kv_events_endpoints" not in given
    if says_events:
        fields.pop("kv_events_endpoints", None)
    events = given["kv_events_endpoint"] if says_events else None
    return record_of(_spread(fields, _text(events), _text(given.get("replay_endpoint"))))


def _text(value: object) -> str | None:
    """What is none is told of by `record_of`."""
    return value if isinstance(value, str) else None


def _spread(fields: Fields, events: str | None, replay: str | None) -> Fields:
    """A template says where rank 0 publishes and replays; every other rank has its own port."""
    is_wide = fields.get("data_parallel_size", 1) != 1 or "data_parallel_start_rank" in fields
    found = streams(fields, events, replay) if is_wide else {}
    if "kv_events_endpoints" in found:
        fields.pop("kv_events_endpoint", None)
    return fields | found
