"""What an engine says of itself, as fields of a record of POST /workers.

vLLM and SGLang are asked for the same documents, and whatever they answer is read.  Nothing is
guessed: a field that no answer tells is `missing`, with the reason and the way to make it known.

Sources: vLLM 0.33 `v1/metrics/loggers.py` (`vllm:cache_config_info`, one series for each engine
core, whose `num_gpu_blocks` is the sum of them), `entrypoints/serve/dev/server_info` (only with
VLLM_SERVER_DEV_MODE=1); SGLang 0.5.23 `entrypoints/http_server.py` (`/server_info`) and
`runtime_context.describe_kv_events_publisher` (its field `kv_events`).
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec

from indexer.endpoints import port_plus
from select_service.core.discovery.template import Fields
from select_service.unreadable_json import UNREADABLE

MODELS, METRICS = "/v1/models", "/metrics"
INFO, OLD_INFO = "/server_info?config_format=json", "/get_server_info"
"""The parameter has vLLM write its configuration as JSON; SGLang does not look at it."""

ADAPTERS_MAX = 1024
VALUES_MAX = 32_768
"""Of a document, counted by its commas: decoding more would take the interpreter for too long."""
CACHE_BYTES_MAX = 256 * 1024
"""Of lines that describe the cache; vLLM writes one of 1.5 KB for each engine core."""
_CACHE = "vllm:cache_config_info"
_WILDCARDS = ("*", "0.0.0.0", "::", "[::]")
_ROLES = {"prefill": "prefill", "decode": "decode"}
_DEV_MODE = "vLLM tells it only with VLLM_SERVER_DEV_MODE=1"


class EngineFacts(NamedTuple):
    """engine:   whose answers they were; None: of neither
    fields:   of the record, as far as they are known
    missing:  by field: why it is not known
    adapters: names of LoRA adapters, which requests give as `lora_name`
    aliases:  further names of the model
    """

    engine: Literal["vllm", "sglang"] | None
    fields: Fields
    missing: dict[str, str]
    adapters: list[str]
    aliases: list[str]


Answers = Mapping[str, bytes]
"""By path, of those that were answered with 200."""


def facts_of(url: str, answers: Answers) -> EngineFacts:
    """url: of the engine.  Answers that make no sense count as not given."""
    url = url.rstrip("/")
    info = _json(answers.get(INFO)) or _json(answers.get(OLD_INFO))
    names, adapters, owner = _models(_json(answers.get(MODELS)))
    caches = _caches(answers.get(METRICS, b""))
    engine: Literal["vllm", "sglang"] | None = None
    fields: Fields = {}
    if caches or "vllm_config" in info or owner == "vllm":
        engine = "vllm"
        fields = _of_vllm(url, info.get("vllm_config"), caches)
    elif "page_size" in info or owner == "sglang":
        engine = "sglang"
        fields = _of_sglang(url, info)
    if names:
        fields["model_name"] = names[0]
    if engine is not None and METRICS in answers:
        fields["metrics_endpoint"] = url + METRICS
    fields = {name: value for name, value in fields.items() if value is not None}
    missing = _missing(engine, fields)
    return EngineFacts(engine, {"endpoint": url, **fields}, missing, adapters, names[1:])


def _json(document: bytes | None) -> dict[str, Any]:
    """Empty for what is no object, or too much of one."""
    document = document or b""
    if document.count(b",") > VALUES_MAX or document.count(b"[") > VALUES_MAX:
        return {}
    try:
        found: object = msgspec.json.decode(document)
    except UNREADABLE:
        return {}
    return found if isinstance(found, dict) else {}


def _models(document: dict[str, Any]) -> tuple[list[str], list[str], str | None]:
    """Names of the model, names of adapters, and who says so."""
    listed = document.get("data")
    cards = [card for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []
    cards = [card for card in cards if isinstance(card.get("id"), str)]
    names = [card["id"] for card in cards if not card.get("parent")]
    adapters = [card["id"] for card in cards if card.get("parent")]
    owner = cards[0].get("owned_by") if cards else None
    return names, adapters[:ADAPTERS_MAX], owner


def _caches(text: bytes) -> dict[int, Mapping[str, str]]:
    """The labels of vLLM's configuration of its cache, by the number of the engine core."""
    # Not where settings are judged, which import this module, too: it takes 30 ms.
    from prometheus_client.parser import text_string_to_metric_families

    lines = _cache_lines(b"\n" + text)
    try:
        families = list(text_string_to_metric_families(lines.decode()))
    except ValueError:
        return {}
    samples = [sample for family in families for sample in family.samples]
    return {
        number: sample.labels
        for sample in samples
        if (number := _whole(sample.labels.get("engine"), 0)) is not None
    }


def _cache_lines(text: bytes) -> bytes:
    """Return the lines that describe the cache, found without making all lines.  text: begins with
    a line feed
    """
    found, begin = bytearray(), text.find(b"\n" + _CACHE.encode())
    while begin >= 0 and len(found) < CACHE_BYTES_MAX:
        end = text.find(b"\n", begin + 1)
        end = len(text) if end < 0 else end
        found += text[begin : min(end, begin + CACHE_BYTES_MAX)]
        begin = text.find(b"\n" + _CACHE.encode(), end)
    return bytes(found)


def _of_vllm(url: str, config: object, caches: dict[int, Mapping[str, str]]) -> Fields:
    """config: None where it may not be asked for"""
    fields: Fields = {}
    if caches:
        first, labels = min(caches.items())
        blocks = _whole(labels.get("num_gpu_blocks"), 1)
        fields["block_size"] = _whole(labels.get("block_size"), 1)
        fields["total_kv_blocks"] = None if blocks is None else blocks // len(caches)
        fields |= _ranks(first, len(caches))
    if not isinstance(config, dict):
        return fields
    scheduler, events = _part(config, "scheduler_config"), _part(config, "kv_events_config")
    fields["max_num_batched_tokens"] = _whole(scheduler.get("max_num_batched_tokens"), 1)
    if not caches:
        fields["block_size"] = _whole(_part(config, "cache_config").get("block_size"), 1)
        parallel = _part(config, "parallel_config")
        fields |= _ranks(0, _whole(parallel.get("data_parallel_size"), 1) or 1)
    if events.get("enable_kv_cache_events") and events.get("publisher") == "zmq":
        named = _reached(url, events.get("endpoint")), _reached(url, events.get("replay_endpoint"))
        fields |= streams(fields, *named)
    return fields


def _of_sglang(url: str, info: dict[str, Any]) -> Fields:
    events, sizes = _part(info, "kv_events"), (info.get("page_size"), info.get("dp_size"))
    block_size = _whole(events.get("block_size"), 1) or _whole(sizes[0], 1)
    tokens = _whole(info.get("max_total_num_tokens"), 1)
    n_ranks = _whole(events.get("dp_size"), 1) or _whole(sizes[1], 1) or 1
    fields: Fields = {
        "block_size": block_size,
        "role": _ROLES.get(_role(info)),
        **_ranks(0, n_ranks),
    }
    if block_size is not None and tokens is not None:
        fields["total_kv_blocks"] = tokens // block_size
    bounds = [_whole(info.get(name), 1) for name in ("chunked_prefill_size", "max_prefill_tokens")]
    fields["max_num_batched_tokens"] = min((each for each in bounds if each), default=None)
    if str(info.get("speculative_algorithm")).upper().startswith("EAGLE"):
        fields["is_eagle"] = True
    host, port = events.get("endpoint_host"), _whole(events.get("endpoint_port_base"), 1)
    if isinstance(host, str) and port is not None:
        replay = _whole(events.get("replay_endpoint_port_base"), 1)
        named = (None if each is None else f"tcp://{host}:{each}" for each in (port, replay))
        fields |= streams(fields, *(_reached(url, each) for each in named))
    return fields


def _role(info: dict[str, Any]) -> str:
    return str(info.get("disaggregation_mode"))


def _ranks(first: int, count: int) -> Fields:
    """Nothing for a single rank 0, which is what a record without them means."""
    fields: Fields = {"data_parallel_size": count} if count > 1 or first else {}
    return fields | ({"data_parallel_start_rank": first} if first else {})


def streams(fields: Fields, events: str | None, replay: str | None) -> Fields:
    """Where ranks publish and replay: at the port of rank 0 and, from there, their number on."""
    first, count = fields.get("data_parallel_start_rank", 0), fields.get("data_parallel_size", 1)
    found: Fields = {}
    by_rank = (
        {rank: port_plus(events, rank) for rank in range(first, first + count)} if events else {}
    )
    if by_rank and all(by_rank.values()):
        if count == 1:
            found["kv_events_endpoint"] = by_rank[first]
        else:
            found["kv_events_endpoints"] = by_rank
    if replay and (own := port_plus(replay, first)):
        found["replay_endpoint"] = own
    return found


def _reached(url: str, endpoint: object) -> str | None:
    """An endpoint that is bound, as others reach it: at the host of the engine."""
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


def _part(document: dict[str, Any], name: str) -> dict[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def _whole(value: object, least: int) -> int | None:
    """A whole number of at least so much; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and isinstance(value, int) and least <= value < 2**63 else None


def _missing(engine: str | None, fields: Fields) -> dict[str, str]:
    if engine is None:
        why = "the engine answers neither as vLLM nor as SGLang does"
        wanted = ("model_name", "block_size", "kv_events_endpoint")
        return {name: why for name in wanted if name not in fields}
    whys = _WHYS[engine]
    has_events = "kv_events_endpoint" in fields or "kv_events_endpoints" in fields
    missing = {name: why for name, why in whys.items() if name not in fields}
    if has_events:
        missing.pop("kv_events_endpoint", None)
    else:
        missing.pop("replay_endpoint", None)  # one thing after the other
    return missing


_WHYS = {
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
