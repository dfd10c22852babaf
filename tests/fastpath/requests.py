"""Requests as bytes, in the spellings of many clients."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Headers = Sequence[tuple[str, str]]

HOST = ("Host", "127.0.0.1:8092")
JSON = ("Content-Type", "application/json")
HTTPX: Headers = (
    HOST,
    ("Accept", "*/*"),
    ("Accept-Encoding", "gzip, deflate, br"),
    ("Connection", "keep-alive"),
    ("User-Agent", "python-httpx/0.28.1"),
)
AIOHTTP: Headers = (HOST, ("Accept", "*/*"), ("User-Agent", "Python/3.12 aiohttp/3.13.2"))
HYPER: Headers = (("host", "selector.llm.svc.cluster.local:8092"), ("accept", "*/*"))
BARE: Headers = (("host", "a"),)

HASHES: Mapping[str, Any] = {
    "selection_id": "turn-17",
    "model_name": "llama",
    "block_hashes": [11, -12, 2**64 - 1, -(2**63)],
    "sequence_hashes": [2**63, 2**63 - 1, 10**19, 0],
    "isl_tokens": 70,
}
TOKENS: Mapping[str, Any] = {"model_name": "llama", "token_ids": [0, 1, 99_999_999, 128_255, 10]}
BOOKED: Mapping[str, Any] = {
    "reservation_id": "request-123",
    "model_name": "llama",
    "tenant_id": "a",
    "worker_id": 2**64 - 2,
    "dp_rank": 3,
    "sequence_hashes": [21, 22, 23, 24],
    "isl_tokens": 2**40,
    "effective_prefill_tokens": 0,
    "expected_output_tokens": 2**32 - 1,
}
LONG: Mapping[str, Any] = {
    "token_ids": [n * n % 128_256 for n in range(500)],
    "selection_id": "~" * 512,
}


LEFT_OUT = (
    *("selection_id", "expected_output_tokens", "lora_name", "cache_salt", "is_eagle"),
    *("mm_routing_info", "block_mm_infos", "router_config_override", "priority_jump"),
    *("strict_priority", "priority_tier", "timeout_ms", "pinned_worker", "allowed_worker_ids"),
    *("deadline_ms", "fairness_id"),
)
"""Fields of requests that choose a rank; clients write null for absent values."""


WAITING = {"timeout_ms": 3_600_000, "deadline_ms": 0, "fairness_id": "customer 4"}
"""Fields that matter only to requests that wait."""


LEGS = ("prefill", "decode", "topology", *LEFT_OUT)
"""Fields of requests that choose a pair; clients write null for absent values."""


def request(
    line: str, headers: Headers = HTTPX, body: object = None, compact: bool = False
) -> bytes:
    """Return a request as bytes; a body adds the headers of JSON.

    line: method and path
    """
    head = [f"{line} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    content = b""
    if body is not None:
        content = body if isinstance(body, bytes) else dumped(body, compact)
        head += [f"Content-Length: {len(content)}", ": ".join(JSON)]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + content


def dumped(body: object, compact: bool = False) -> bytes:
    separators = (",", ":") if compact else (", ", ": ")
    return json.dumps(body, separators=separators).encode()


def lifecycle() -> list[bytes]:
    calls = [
        request(f"POST /reservations/request-123/{verb}", headers)
        for verb in ("prefill_complete", "output_block", "renew", "first_token")
        for headers in (HTTPX, AIOHTTP)
    ]
    return [
        *calls,
        request("DELETE /reservations/request-123", HYPER),
        request("DELETE /reservations/a.b_c~d:1", AIOHTTP),
        request("POST /reservations/x/output_block", HTTPX, {}),
        request("POST /reservations/x/output_block", HTTPX, b" {\r\n}\t"),
        request("POST /reservations/x/output_block", (*HTTPX, ("Content-Length", "0"))),
        request("POST /reservations/x/prefill_complete", HTTPX, {}),
        *(
            request("POST /reservations/x/output_block", HTTPX, {"decay_fraction": fraction})
            for fraction in (None, 0, 1, 0.0, 1.0, 0.5, 0.1, 0.7, 0.123456789012345)
        ),
        request("DELETE /reservations/" + "i" * 512, AIOHTTP, {}),
    ]


def prompts() -> list[bytes]:
    blocks_as_well = {**BOOKED, "block_hashes": [1, 2, 3, 4]}
    return [
        request("POST /select", HTTPX, HASHES),
        request("POST /select", HYPER, HASHES, compact=True),
        request("POST /select", BARE, TOKENS),
        request("POST /select", AIOHTTP, {"token_ids": [7]}, compact=True),
        request("POST /select", AIOHTTP, LONG),
        request("POST /select", AIOHTTP, LONG, compact=True),
        request("POST /select", HTTPX, {**dict.fromkeys(LEFT_OUT), **TOKENS}),
        request(
            "POST /select_and_reserve",
            HTTPX,
            {**HASHES, **dict.fromkeys(("reservation_id", *LEFT_OUT))},
        ),
        request(
            "POST /reservations", HYPER, {**dict.fromkeys(("token_ids", "lora_name")), **BOOKED}
        ),
        request("POST /select", (*HYPER, ("x-dynamo-meta-policy-class", "batch")), TOKENS),
        request("POST /select_and_reserve", HTTPX, {**HASHES, "reservation_id": "r/1 %?"}),
        request("POST /select_and_reserve", HYPER, {**TOKENS, "routing_group": "b"}),
        request("POST /select_and_reserve", HTTPX, {**TOKENS, **WAITING}),
        request("POST /select_pair", AIOHTTP, {**WAITING, **HASHES}, compact=True),
        request("POST /select_pair", HTTPX, TOKENS),
        request("POST /select_pair", AIOHTTP, {**HASHES, "local": "never"}, compact=True),
        request("POST /select_pair", HYPER, {**dict.fromkeys(LEGS), **TOKENS, "local": "auto"}),
        request("POST /select_pair_and_reserve", HTTPX, {**HASHES, "reservation_id": "p"}),
        request("POST /select_pair_and_reserve", BARE, {**TOKENS, "local": "always"}),
        request("POST /reservations", HTTPX, BOOKED),
        request("POST /reservations", HYPER, blocks_as_well, compact=True),
        request("POST /reservations", BARE, {"reservation_id": "r", "worker_id": 0, **TOKENS}),
        request("POST /reservations", BARE, {"selection_id": "s", "worker_id": 0, **TOKENS}),
        request("POST /reservations", HTTPX, {**BOOKED, "selection_id": "s"}),
        request("POST /select_and_reserve", AIOHTTP, {**TOKENS, "selection_id": "s"}),
        request("POST /select_and_reserve", AIOHTTP, {**TOKENS, "tenant_id": "b"}),
        request("POST /select_and_reserve", HTTPX, {**HASHES, "return_hashes": False}),
        request("POST /select_and_reserve", HTTPX, {**HASHES, "return_hashes": True}, compact=True),
    ]


USUAL: list[bytes] = prompts() + lifecycle()
