"""Candidates: engines found by a source, and their worker records.

A candidate has the fields of the source's template; missing fields are requested from the engine.
The template takes precedence.
"""

from collections.abc import Mapping
from typing import NamedTuple

from select_service.core.registry.discovery.engine_facts import stream_endpoints
from select_service.core.registry.discovery.record_template import Fields
from select_service.core.registry.discovery.worker_records import derive_worker_id, validate_record
from select_service.schemas.workers import WorkerRegistration


class EngineCandidate(NamedTuple):
    """Engine found by a source.

    endpoint: URL of the engine
    fields: fields of its record, including the endpoint
    version: changes when another engine may be behind the endpoint
    """

    endpoint: str
    fields: Fields
    version: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Key of the engine's cached facts."""
        return self.endpoint, self.version

    @property
    def worker_id(self) -> int:
        given = self.fields.get("worker_id")
        return given if isinstance(given, int) else derive_worker_id(self.endpoint)


def complete_record(
    candidate: EngineCandidate, engine_facts: Mapping[str, object]
) -> WorkerRegistration:
    """Build the record. Raises ValueError with one line.

    engine_facts: facts of the engine as fields of a record
    """
    given = candidate.fields
    fields = {**engine_facts, **given}
    said, transfer = engine_facts.get("kv_transfer"), given.get("kv_transfer")
    if isinstance(said, dict) and isinstance(transfer, dict):
        # The template gives links, which no engine reports, and the engine its connector.
        fields["kv_transfer"] = {**said, **transfer}
    # A single endpoint in the template must not be combined with a table from the engine.
    says_events = "kv_events_endpoint" in given and "kv_events_endpoints" not in given
    if says_events:
        fields.pop("kv_events_endpoints", None)
    events = given["kv_events_endpoint"] if says_events else None
    return validate_record(
        _derive_rank_endpoints(
            fields, _text_or_none(events), _text_or_none(given.get("replay_endpoint"))
        )
    )


def _text_or_none(value: object) -> str | None:
    """Return the value if it is a text; `validate_record` reports other values."""
    return value if isinstance(value, str) else None


def _derive_rank_endpoints(fields: Fields, events: str | None, replay: str | None) -> Fields:
    """Derive the endpoints of all ranks: the template gives rank 0, and each rank has its own
    port.
    """
    is_wide = fields.get("data_parallel_size", 1) != 1 or "data_parallel_start_rank" in fields
    found = stream_endpoints(fields, events, replay) if is_wide else {}
    if "kv_events_endpoints" in found:
        fields.pop("kv_events_endpoint", None)
    return fields | found
