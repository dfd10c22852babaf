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

ANSWER_BYTES_MAX = 8 << 20
TIMEOUT_S = 20.0
"""Of one document: vLLM looks at its machine before it first answers with its configuration."""


async def facts_from(http: HttpClient, url: str) -> EngineFacts:
    """Raises HttpError when nothing can be asked there."""
    base = url.rstrip("/")
    found = await asyncio.gather(
        *(_document(http, base + path) for path in (MODELS, METRICS, INFO))
    )
    answers = dict(zip((MODELS, METRICS, INFO), found, strict=True))
    if isinstance(answers[INFO], HttpError):  # as SGLang called it before
        answers[OLD_INFO] = await _document(http, base + OLD_INFO)
    good: Answers = {path: each for path, each in answers.items() if isinstance(each, bytes)}
    faults = [each for each in answers.values() if isinstance(each, HttpError)]
    if not good:
        raise faults[0]
    return await asyncio.to_thread(facts_of, base, good)


async def _document(http: HttpClient, url: str) -> bytes | HttpError:
    try:
        return await http.body(
            url,
            accept="*/*",
            bytes_max=ANSWER_BYTES_MAX,
            timeout_s=TIMEOUT_S,
            purpose="discovery",
        )
    except HttpError as error:
        return error
