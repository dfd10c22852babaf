"""Command `select-service inspect`: prints an engine's description as a worker registration."""

import asyncio
import json
import sys
from collections.abc import Sequence

from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.discovery.probe_engine import fetch_engine_facts
from select_service.adapters.http_get import HttpClient
from select_service.auth.client_credentials import (
    ClientCredentials,
    add_credential_flags,
    credentials_from_args,
)
from select_service.base.command_line import (
    CommandParser,
    UsageError,
    argument_type,
    print_error,
    whole_number,
)
from select_service.base.suggestions import printable_name
from select_service.core.registry.discovery.engine_facts import EngineFacts
from select_service.core.registry.discovery.worker_records import derive_worker_id
from select_service.net.http_client.http_error import HttpError
from select_service.net.urls import service_url_error
from select_service.schemas.common import U64_MAX

REQUIRED = ("model_name", "block_size", "kv_events_endpoint")
"""Fields that every useful record has, unless KV events are disabled."""


def inspect_command(argv: Sequence[str]) -> int:
    """Run the command; return 0 for a complete record, 1 for no answer or missing fields.

    Raises UsageError.
    """
    arguments = make_inspect_parser().parse_arguments(argv)
    if (error := service_url_error(arguments.url)) is not None:
        raise UsageError(
            f"{printable_name(arguments.url)}: {error}; give http://HOST:PORT of an engine"
        )
    presented = credentials_from_args(arguments)
    try:
        facts = asyncio.run(_query_engine(arguments.url, presented))
    except HttpError as refused:
        advice = "is an engine running there? Give its http://HOST:PORT, without a path"
        print_error(f"{arguments.url}: {refused}; {advice}")
        return 1
    if facts.engine is None and "model_name" not in facts.fields:
        print_error(f"{arguments.url}: the answers match neither vLLM nor SGLang; give another URL")
        return 1
    worker_id = arguments.worker_id
    if worker_id is None:
        worker_id = derive_worker_id(facts.fields["endpoint"])
    print(json.dumps({"worker_id": worker_id, **facts.fields}, indent=2))
    # On standard error, so that standard output can be redirected into a JSON file.
    print("\n".join(remark_lines(facts)), file=sys.stderr)
    return 1 if any(name in facts.missing for name in REQUIRED) else 0


def remark_lines(facts: EngineFacts) -> list[str]:
    """Return the lines for people that have no place in the record."""
    lines = [f"engine: {facts.engine or 'neither vLLM nor SGLang'}"]
    if facts.aliases:
        lines.append(f"other names of the model: {', '.join(facts.aliases)}")
    if facts.adapters:
        lines.append(f"adapters, for lora_name of requests: {', '.join(facts.adapters)}")
    return lines + [f"missing: {name}: {why}" for name, why in facts.missing.items()]


async def _query_engine(url: str, presented: ClientCredentials) -> EngineFacts:
    """Query the engine.  Raises HttpError."""
    http = HttpClient(Resolver(), key_file=presented.key_file, tls=presented.tls)
    try:
        return await fetch_engine_facts(http, url, with_key=True)
    finally:
        await http.close()


def make_inspect_parser() -> CommandParser:
    """Return the argument parser of the command."""
    engine = "http://vllm-0:8000"
    result = CommandParser(
        "select-service inspect",
        "Print the description of a running engine (vLLM, SGLang): on standard output a record "
        "for POST /workers, on standard error the missing fields.",
        {
            f"select-service inspect {engine}": "print the record of an engine",
            f"select-service inspect {engine} > worker.json": "write the record to a file",
            f"select-service inspect {engine} --worker-id 7": "with an id of your own",
        },
        "URL [OPTION ...]",
    )
    result.add_argument("url", metavar="URL", help="address of the engine")
    result.add_argument(
        "--worker-id",
        type=argument_type(whole_number(0, U64_MAX)),
        metavar="ID",
        help="worker_id of the record (default: derived from the URL)",
    )
    add_credential_flags(result, "engine")
    return result
