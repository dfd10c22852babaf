"""Reading of an engine's self-description: models, metrics and server configuration."""

import asyncio

from select_service.adapters.http_get import HttpClient
from select_service.core.registry.discovery.engine_facts import (
    INFO,
    METRICS,
    MODEL_INFO,
    MODELS,
    OLD_INFO,
    EngineAnswers,
    EngineFacts,
    extract_facts,
)
from select_service.net.http_client.http_error import HttpError

DOCUMENT_BYTES_MAX = 1 << 20
METRICS_BYTES_MAX = 4 << 20
TIMEOUT_S = 20.0
"""Time limit of a document, in seconds: vLLM inspects its machine before its first
configuration.
"""


async def fetch_engine_facts(http: HttpClient, url: str, *, with_key: bool = False) -> EngineFacts:
    """Request the description documents of an engine and return the facts found.

    with_key: True sends the API key of `http` to the engine
    Raises HttpError when no document could be read.
    """
    base = url.rstrip("/")
    found = await asyncio.gather(
        *(_fetch_document(http, base + path, with_key) for path in (MODELS, METRICS, INFO))
    )
    answers = dict(zip((MODELS, METRICS, INFO), found, strict=True))
    if isinstance(answers[INFO], HttpError):  # the path in older versions of SGLang
        answers[OLD_INFO] = await _fetch_document(http, base + OLD_INFO, with_key)
    if any(b'"page_size"' in each for each in answers.values() if isinstance(each, bytes)):
        # A field of SGLang alone, which describes the model elsewhere.
        answers[MODEL_INFO] = await _fetch_document(http, base + MODEL_INFO, with_key)
    good: EngineAnswers = {path: each for path, each in answers.items() if isinstance(each, bytes)}
    faults = [each for each in answers.values() if isinstance(each, HttpError)]
    # One readable document is enough: engines differ in the routes they serve.
    if not good:
        raise faults[0]
    return await asyncio.to_thread(extract_facts, base, good)


async def _fetch_document(http: HttpClient, url: str, with_key: bool) -> bytes | HttpError:
    try:
        return await http.get_body(
            url,
            accept="*/*",
            bytes_max=METRICS_BYTES_MAX if url.endswith(METRICS) else DOCUMENT_BYTES_MAX,
            timeout_s=TIMEOUT_S,
            purpose="discovery",
            with_key=with_key,
        )
    except HttpError as error:
        return error
