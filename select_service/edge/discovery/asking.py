"""Asks an engine for the documents in which it says what it is."""

import asyncio

from select_service.core.discovery.engine_facts import (
    INFO,
    METRICS,
    MODELS,
    OLD_INFO,
    Answers,
    EngineFacts,
    facts_of,
)
from select_service.edge.http_client import HttpClient
from select_service.edge.http_error import HttpError

DOCUMENT_BYTES_MAX = 1 << 20
METRICS_BYTES_MAX = 4 << 20
TIMEOUT_S = 20.0
"""Of one document: vLLM looks at its machine before it first answers with its configuration."""


async def facts_from(http: HttpClient, url: str, *, with_key: bool = False) -> EngineFacts:
    """Raises HttpError when nothing can be asked there.

    with_key: the engine asks for that of `http`, and may have it
    """
    base = url.rstrip("/")
    found = await asyncio.gather(
        *(_document(http, base + path, with_key) for path in (MODELS, METRICS, INFO))
    )
    answers = dict(zip((MODELS, METRICS, INFO), found, strict=True))
    if isinstance(answers[INFO], HttpError):  # as SGLang called it before
        answers[OLD_INFO] = await _document(http, base + OLD_INFO, with_key)
    good: Answers = {path: each for path, each in answers.items() if isinstance(each, bytes)}
    faults = [each for each in answers.values() if isinstance(each, HttpError)]
    if not good:
        raise faults[0]
    return await asyncio.to_thread(facts_of, base, good)


async def _document(http: HttpClient, url: str, with_key: bool) -> bytes | HttpError:
    try:
        return await http.body(
            url,
            accept="*/*",
            bytes_max=METRICS_BYTES_MAX if url.endswith(METRICS) else DOCUMENT_BYTES_MAX,
            timeout_s=TIMEOUT_S,
            purpose="discovery",
            with_key=with_key,
        )
    except HttpError as error:
        return error
