"""Preparation of prompts before the synchronous step that chooses and books.

Long prompts are decoded on a thread, and memory for their blocks is made in small steps.  Prompts
of models with a shared cache are looked up there.
"""

import asyncio

from select_service.api.service_context import ServiceContext, core_time
from select_service.base.errors import ShuttingDown
from select_service.core.placement.prompt import (
    PromptReader,
    ReadAheadPrompt,
    is_long_prompt,
    lookahead_of,
    read_prompt,
)
from select_service.schemas.prompts import PromptFields

_SHUTTING_DOWN = "the service is shutting down; nothing was done"


async def prehash_prompt(
    service: ServiceContext, body: PromptFields, read: PromptReader = read_prompt
) -> ReadAheadPrompt:
    """Decode and hash a prompt with `is_long` on a thread.

    Raises BadRequest, InvalidBody, ShuttingDown.
    """
    hashing = service.prompt_resolver.hashing_parameters(body)
    try:
        return ReadAheadPrompt(*hashing, await asyncio.to_thread(read, body, *hashing))
    except asyncio.CancelledError:
        raise ShuttingDown(_SHUTTING_DOWN) from None


async def prepare_prompt(service: ServiceContext, body: PromptFields) -> ReadAheadPrompt | None:
    """Read a prompt in advance if it is long, or if its model has a shared cache.

    Raises BadRequest, InvalidBody, ShuttingDown.
    """
    read = await prehash_prompt(service, body) if is_long_prompt(body) else None
    caches = service.features.shared_caches
    if caches is None or not caches.serves(body.model_name):
        return read
    if service.prompt_resolver.find_partition(body) is None:
        return read
    size, lookahead = service.prompt_resolver.hashing_parameters(body)
    if read is None:
        read = ReadAheadPrompt(size, lookahead, read_prompt(body, size, lookahead))
    try:
        hits = await caches.look_up(body, size, lookahead_of(body, lookahead) > 0)
    except asyncio.CancelledError:
        raise ShuttingDown(_SHUTTING_DOWN) from None
    return read._replace(prompt=read.prompt._replace(shared=hits))


async def wait_until_bookable(service: ServiceContext, body: PromptFields) -> None:
    """Wait until booking the prompt is a bounded step; valid until the next await.

    Raises ShuttingDown.
    """
    try:
        while not service.selector.may_book_prompt(body, core_time()):
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        raise ShuttingDown(_SHUTTING_DOWN) from None
