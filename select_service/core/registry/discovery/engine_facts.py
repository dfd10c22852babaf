"""Facts that an engine reports about itself, as fields of a POST /workers record.

vLLM and SGLang receive the same requests, and every answer is used. Nothing is guessed: a field
without an answer is `missing`, with the reason and how to provide it.

Sources: vLLM 0.33 `v1/metrics/loggers.py` (`vllm:cache_config_info`, one series for each engine
core; `num_gpu_blocks` of a core is their sum), `entrypoints/serve/dev/server_info` (only with
VLLM_SERVER_DEV_MODE=1); SGLang 0.5.23 `entrypoints/http_server.py` (`/server_info`) and
`runtime_context.describe_kv_events_publisher` (its field `kv_events`).
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec

from indexer.zmq_endpoints import offset_port
from select_service.base.decode_errors import DECODE_ERRORS
from select_service.core.registry.discovery.cache_facts import (
    context_parallel_size,
    read_sglang_cache_facts,
    read_vllm_cache_facts,
)
from select_service.core.registry.discovery.record_template import Fields
from select_service.core.registry.discovery.transfer_facts import (
    read_sglang_transfer_facts,
    read_vllm_transfer_facts,
)

MODELS, METRICS = "/v1/models", "/metrics"
INFO, OLD_INFO = "/server_info?config_format=json", "/get_server_info"
"""Path of the configuration; the parameter makes vLLM answer in JSON, and SGLang ignores it."""
MODEL_INFO = "/model_info"
"""Path of SGLang's description of the model."""

ADAPTERS_MAX = 1024
VALUES_MAX = 32_768
"""Maximum values per document, counted by commas: decoding more would block the interpreter."""
CACHE_BYTES_MAX = 256 * 1024
"""Maximum size of the cache lines; vLLM writes 1.5 KB per engine core."""
_CACHE = "vllm:cache_config_info"
_WILDCARDS = ("*", "0.0.0.0", "::", "[::]")
_DEV_MODE = "vLLM reports it only with VLLM_SERVER_DEV_MODE=1"


class EngineFacts(NamedTuple):
    """Facts about an engine.

    engine: detected engine; None if neither
    fields: known fields of the record
    missing: reasons for unknown fields
    adapters: names of LoRA adapters, used in requests as `lora_name`
    aliases: further names of the model
    """

    engine: Literal["vllm", "sglang"] | None
    fields: Fields
    missing: dict[str, str]
    adapters: list[str]
    aliases: list[str]


EngineAnswers = Mapping[str, bytes]
"""Bodies of answers with status 200, by path."""


def extract_facts(url: str, answers: EngineAnswers) -> EngineFacts:
    """Extract the facts; malformed answers count as missing. url: URL of the engine"""
    url = url.rstrip("/")
    info = _decode_object(answers.get(INFO)) or _decode_object(answers.get(OLD_INFO))
    names, adapters, owner = _read_models(_decode_object(answers.get(MODELS)))
    caches = _read_cache_labels(answers.get(METRICS, b""))
    engine: Literal["vllm", "sglang"] | None = None
    fields: Fields = {}
    if caches or "vllm_config" in info or owner == "vllm":
        engine = "vllm"
        fields = _vllm_fields(
            url, _object_field(info, "vllm_config"), caches, answers.get(METRICS, b"")
        )
        fields |= read_vllm_transfer_facts(info, fields.get("data_parallel_size", 1))
    elif "page_size" in info or owner == "sglang":
        engine = "sglang"
        fields = _sglang_fields(url, info)
        fields |= read_sglang_transfer_facts(info)
        fields["kv_cache"] = read_sglang_cache_facts(info, _decode_object(answers.get(MODEL_INFO)))
    if names:
        fields["model_name"] = names[0]
    if engine is not None and METRICS in answers:
        fields["metrics_endpoint"] = url + METRICS
    fields = {name: value for name, value in fields.items() if value is not None}
    missing = _missing_fields(engine, fields)
    return EngineFacts(engine, {"endpoint": url, **fields}, missing, adapters, names[1:])


def _decode_object(document: bytes | None) -> dict[str, Any]:
    """Decode a JSON object; return an empty one for anything else or too large."""
    document = document or b""
    # Counting bytes is fast, and bounds the decoding of an untrusted document.
    if document.count(b",") > VALUES_MAX or document.count(b"[") > VALUES_MAX:
        return {}
    try:
        found: object = msgspec.json.decode(document)
    except DECODE_ERRORS:
        return {}
    return found if isinstance(found, dict) else {}


def _read_models(document: dict[str, Any]) -> tuple[list[str], list[str], str | None]:
    """Return model names, adapter names, and the owner in the answer."""
    listed = document.get("data")
    cards = [card for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []
    cards = [card for card in cards if isinstance(card.get("id"), str)]
    names = [card["id"] for card in cards if not card.get("parent")]
    adapters = [card["id"] for card in cards if card.get("parent")]
    owner = cards[0].get("owned_by") if cards else None
    return names, adapters[:ADAPTERS_MAX], owner


def _read_cache_labels(text: bytes) -> dict[int, Mapping[str, str]]:
    """Return the labels of vLLM's cache configuration, by engine core number."""
    # Imported here: settings validation imports this module too, and the parser takes 30 ms.
    from prometheus_client.parser import text_string_to_metric_families

    lines = _find_cache_lines(b"\n" + text)
    try:
        families = list(text_string_to_metric_families(lines.decode()))
    except ValueError:
        return {}
    samples = [sample for family in families for sample in family.samples]
    return {
        number: sample.labels
        for sample in samples
        if (number := _whole_number(sample.labels.get("engine"), 0)) is not None
    }


def _find_cache_lines(text: bytes) -> bytes:
    """Return the lines that describe the cache, found without splitting all lines.

    text: begins with a line feed
    """
    found, begin = bytearray(), text.find(b"\n" + _CACHE.encode())
    while begin >= 0 and len(found) < CACHE_BYTES_MAX:
        end = text.find(b"\n", begin + 1)
        end = len(text) if end < 0 else end
        found += text[begin : min(end, begin + CACHE_BYTES_MAX)]
        begin = text.find(b"\n" + _CACHE.encode(), end)
    return bytes(found)


def _vllm_fields(
    url: str, config: dict[str, Any], caches: dict[int, Mapping[str, str]], metrics: bytes
) -> Fields:
    """Return fields of a vLLM engine; config is empty if unavailable."""
    fields: Fields = {}
    labels: Mapping[str, str] = {}
    if caches:
        first, labels = min(caches.items())
        blocks = _whole_number(labels.get("num_gpu_blocks"), 1)
        fields["block_size"] = _whole_number(labels.get("block_size"), 1)
        # vLLM reports the sum over all engine cores in every series.
        fields["total_kv_blocks"] = None if blocks is None else blocks // len(caches)
        fields |= _rank_fields(first, len(caches))
    fields["kv_cache"] = read_vllm_cache_facts(config, labels, metrics)
    if not config:
        return fields
    scheduler, events = (
        _object_field(config, "scheduler_config"),
        _object_field(config, "kv_events_config"),
    )
    fields["max_num_batched_tokens"] = _whole_number(scheduler.get("max_num_batched_tokens"), 1)
    if not caches:
        fields["block_size"] = _whole_number(
            _object_field(config, "cache_config").get("block_size"), 1
        )
        parallel = _object_field(config, "parallel_config")
        fields |= _rank_fields(0, _whole_number(parallel.get("data_parallel_size"), 1) or 1)
    if fields["block_size"] is not None:
        # Events count the tokens of a block on all context-parallel ranks.
        fields["block_size"] *= context_parallel_size(config)
    if events.get("enable_kv_cache_events") and events.get("publisher") == "zmq":
        named = (
            _reachable_endpoint(url, events.get("endpoint")),
            _reachable_endpoint(url, events.get("replay_endpoint")),
        )
        fields |= stream_endpoints(fields, *named)
    return fields


def _sglang_fields(url: str, info: dict[str, Any]) -> Fields:
    events, sizes = _object_field(info, "kv_events"), (info.get("page_size"), info.get("dp_size"))
    block_size = _whole_number(events.get("block_size"), 1) or _whole_number(sizes[0], 1)
    tokens = _whole_number(info.get("max_total_num_tokens"), 1)
    n_ranks = _whole_number(events.get("dp_size"), 1) or _whole_number(sizes[1], 1) or 1
    fields: Fields = {
        "block_size": block_size,
        **_rank_fields(0, n_ranks),
    }
    if block_size is not None and tokens is not None:
        fields["total_kv_blocks"] = tokens // block_size
    bounds = [
        _whole_number(info.get(name), 1) for name in ("chunked_prefill_size", "max_prefill_tokens")
    ]
    # Both settings limit a batch in SGLang; the smaller one is effective.
    fields["max_num_batched_tokens"] = min((each for each in bounds if each), default=None)
    if str(info.get("speculative_algorithm")).upper().startswith("EAGLE"):
        fields["is_eagle"] = True
    host, port = events.get("endpoint_host"), _whole_number(events.get("endpoint_port_base"), 1)
    if isinstance(host, str) and port is not None:
        replay = _whole_number(events.get("replay_endpoint_port_base"), 1)
        named = (None if each is None else f"tcp://{host}:{each}" for each in (port, replay))
        fields |= stream_endpoints(fields, *(_reachable_endpoint(url, each) for each in named))
    return fields


def _rank_fields(first: int, count: int) -> Fields:
    """Return the rank fields; empty for a single rank 0, the default of a record."""
    fields: Fields = {"data_parallel_size": count} if count > 1 or first else {}
    return fields | ({"data_parallel_start_rank": first} if first else {})


def stream_endpoints(fields: Fields, events: str | None, replay: str | None) -> Fields:
    """Return event and replay endpoints: the port of rank 0 plus the rank number."""
    first, count = fields.get("data_parallel_start_rank", 0), fields.get("data_parallel_size", 1)
    found: Fields = {}
    by_rank = (
        {rank: offset_port(events, rank) for rank in range(first, first + count)} if events else {}
    )
    if by_rank and all(by_rank.values()):
        if count == 1:
            found["kv_events_endpoint"] = by_rank[first]
        else:
            found["kv_events_endpoints"] = by_rank
    if replay and (own := offset_port(replay, first)):
        found["replay_endpoint"] = own
    return found


def _reachable_endpoint(url: str, endpoint: object) -> str | None:
    """Return a bind endpoint as other hosts reach it, with the engine's host name."""
    if not isinstance(endpoint, str):
        return None
    scheme, separator, address = endpoint.partition("://")
    host, colon, port = address.rpartition(":")
    if scheme != "tcp" or not separator or not colon:
        return None
    if host in _WILDCARDS:
        engine = urlsplit(url).netloc.rpartition("@")[2]
        host = engine if engine.endswith("]") else engine.rpartition(":")[0] or engine
    return f"tcp://{host}:{port}"


def _object_field(document: dict[str, Any], name: str) -> dict[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def _whole_number(value: object, least: int) -> int | None:
    """Return a whole number of at least `least`; None for other values."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and isinstance(value, int) and least <= value < 2**63 else None


def _missing_fields(engine: str | None, fields: Fields) -> dict[str, str]:
    if engine is None:
        why = "the engine's answers match neither vLLM nor SGLang"
        required_fields = ("model_name", "block_size", "kv_events_endpoint")
        return {name: why for name in required_fields if name not in fields}
    whys = _MISSING_REASONS[engine]
    has_events = "kv_events_endpoint" in fields or "kv_events_endpoints" in fields
    missing = {name: why for name, why in whys.items() if name not in fields}
    if has_events:
        missing.pop("kv_events_endpoint", None)
    else:
        missing.pop("replay_endpoint", None)  # report one missing part at a time
    return missing


_MISSING_REASONS = {
    "vllm": {
        "model_name": "/v1/models does not name it",
        "block_size": f"/metrics has no {_CACHE}",
        "total_kv_blocks": f"/metrics has no {_CACHE} with num_gpu_blocks",
        "max_num_batched_tokens": _DEV_MODE,
        "kv_events_endpoint": "--kv-events-config names no zmq publisher at a TCP port, or cannot "
        f"be asked for: {_DEV_MODE}",
        "replay_endpoint": "--kv-events-config has no replay_endpoint: what is lost stays lost",
        "metrics_endpoint": "/metrics is not answered",
    },
    "sglang": {
        "model_name": "/v1/models does not name it",
        "block_size": "/server_info has no page_size",
        "total_kv_blocks": "/server_info has no max_total_num_tokens",
        "max_num_batched_tokens": "/server_info has neither chunked_prefill_size nor "
        "max_prefill_tokens",
        "kv_events_endpoint": "--kv-events-config is not set, or names no TCP port",
        "replay_endpoint": "--kv-events-config has no replay_endpoint: what is lost stays lost",
        "metrics_endpoint": "/metrics is not answered: start SGLang with --enable-metrics",
    },
}
