"""Long prompts are read on a thread, and room for their blocks is made in turns, before the step
that chooses and books."""

import asyncio

from select_service.api.service import Service
from select_service.bodies.prompts import PromptFields
from select_service.core.decide.prompt import PromptRead, ReadPrompt, prompt_of
from select_service.errors import ShuttingDown

_ENDING = "the service is ending; nothing was done"


async def read_ahead(
    service: Service, body: PromptFields, read: ReadPrompt = prompt_of
) -> PromptRead:
    """The prompt, of which `is_long` is true.  Raises BadRequest, InvalidBody, ShuttingDown."""
    hashing = service.selector.prompts.hashing(body)
    try:
        return PromptRead(*hashing, await asyncio.to_thread(read, body, *hashing))
    except asyncio.CancelledError:
        raise ShuttingDown(_ENDING) from None


async def may_book(service: Service, body: PromptFields) -> None:
    """Let turns go by until booking the prompt is a bounded step; it is one if nothing else is
    awaited before.  Raises ShuttingDown."""
    try:
        while not service.selector.may_book_prompt(body):
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        raise ShuttingDown(_ENDING) from None
