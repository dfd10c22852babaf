"""Preparation of long prompts before the synchronous step that chooses and books.

Long prompts are decoded on a thread, and memory for their blocks is made in small steps.
"""

import asyncio

from select_service.api.service_context import ServiceContext
from select_service.base.errors import ShuttingDown
from select_service.core.placement.prompt import PromptReader, ReadAheadPrompt, read_prompt
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


async def wait_until_bookable(service: ServiceContext, body: PromptFields) -> None:
    """Wait until booking the prompt is a bounded step; valid until the next await.

    Raises ShuttingDown.
    """
    try:
        while not service.selector.may_book_prompt(body):
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        raise ShuttingDown(_SHUTTING_DOWN) from None
