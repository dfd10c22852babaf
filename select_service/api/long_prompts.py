"""Long prompts are read on a thread, before the step that chooses and books."""

import asyncio

from select_service.api.service import Service
from select_service.bodies.prompts import PromptFields
from select_service.core.decide.prompt import PromptRead, ReadPrompt, prompt_of
from select_service.errors import ShuttingDown


async def read_ahead(
    service: Service, body: PromptFields, read: ReadPrompt = prompt_of
) -> PromptRead:
    """The prompt, of which `is_long` is true.  Raises BadRequest, InvalidBody, ShuttingDown."""
    hashing = service.selector.hashing_of(body)
    try:
        return PromptRead(*hashing, await asyncio.to_thread(read, body, *hashing))
    except asyncio.CancelledError:
        raise ShuttingDown("the service is ending; nothing was done") from None
