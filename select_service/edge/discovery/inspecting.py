"""`select-service inspect`: what an engine says of itself, as a record for POST /workers."""

import asyncio
import json
import sys
from collections.abc import Sequence

from indexer.sockets.names import Names
from select_service.access.presenting import Presented, add_arguments, presented_of
from select_service.bodies.common import U64_MAX
from select_service.command_line import CommandParser, UsageError, typed, whole
from select_service.core.discovery.engine_facts import EngineFacts
from select_service.core.discovery.records import made_id
from select_service.edge.discovery.asking import facts_from
from select_service.edge.http_client import HttpClient
from select_service.edge.http_error import HttpError
from select_service.spelling import shown
from select_service.urls import service_url_error

REQUIRED = ("model_name", "block_size", "kv_events_endpoint")
"""Without which a worker is of no use, unless KV events are off."""


def inspect_command(argv: Sequence[str]) -> int:
    """Exit status: 0 complete, 1 no answer, or something is missing.  Raises UsageError."""
    arguments = parser().read(argv)
    if (error := service_url_error(arguments.url)) is not None:
        raise UsageError(f"{shown(arguments.url)}: {error}; give http://HOST:PORT of an engine")
    presented = presented_of(arguments)
    try:
        facts = asyncio.run(_asked(arguments.url, presented))
    except HttpError as refused:
        advice = "is an engine running there? Give its http://HOST:PORT, without a path"
        fault = f"{arguments.url}: {refused}; {advice}"
        print(f"select-service: error: {fault}", file=sys.stderr)
        return 1
    if facts.engine is None and "model_name" not in facts.fields:
        fault = f"{arguments.url}: it answers neither as vLLM nor as SGLang does; give another URL"
        print(f"select-service: error: {fault}", file=sys.stderr)
        return 1
    worker_id = arguments.worker_id
    if worker_id is None:
        worker_id = made_id(facts.fields["endpoint"])
    print(json.dumps({"worker_id": worker_id, **facts.fields}, indent=2))
    print("\n".join(remarks(facts)), file=sys.stderr)
    return 1 if any(name in facts.missing for name in REQUIRED) else 0


def remarks(facts: EngineFacts) -> list[str]:
    """What belongs into no record, for people."""
    lines = [f"engine: {facts.engine or 'neither vLLM nor SGLang'}"]
    if facts.aliases:
        lines.append(f"other names of the model: {', '.join(facts.aliases)}")
    if facts.adapters:
        lines.append(f"adapters, for lora_name of requests: {', '.join(facts.adapters)}")
    return lines + [f"missing: {name}: {why}" for name, why in facts.missing.items()]


async def _asked(url: str, presented: Presented) -> EngineFacts:
    """Raises HttpError."""
    http = HttpClient(Names(), key_file=presented.key_file, tls=presented.tls)
    try:
        return await facts_from(http, url, with_key=True)
    finally:
        await http.close()


def parser() -> CommandParser:
    engine = "http://vllm-0:8000"
    result = CommandParser(
        "select-service inspect",
        "Ask a running engine (vLLM, SGLang) what it is. Standard output is a record for POST "
        "/workers; standard error says what is missing in it.",
        {
            f"select-service inspect {engine}": "the record of an engine",
            f"select-service inspect {engine} > worker.json": "into a file, for POST /workers",
            f"select-service inspect {engine} --worker-id 7": "under an id of your own",
        },
        "URL [OPTION ...]",
    )
    result.add_argument("url", metavar="URL", help="address of the engine")
    result.add_argument(
        "--worker-id",
        type=typed(whole(0, U64_MAX)),
        metavar="ID",
        help="worker_id of the record (default: one that is made of the URL)",
    )
    add_arguments(result, "engine")
    return result
