"""Pairs as the fast path keeps them: the bytes of request and answer, read only when needed."""

import msgspec
import numpy as np

from select_service.core.decision_maker import PairChooser, PlacementRequest
from select_service.core.pairs.stored_pair_layout import (
    HAS_RESERVATION_ID,
    ISL_TOKENS,
    LOCAL,
    N_BLOCKS,
    OUTPUT_TOKENS,
    RECORD_WORDS,
)
from select_service.core.placement.prompt import Prompt
from select_service.core.registry.fleet.partition import Partition
from select_service.schemas.pairs import (
    LocalRule,
    PairSelection,
    SelectPairAndReserveRequest,
    SelectPairRequest,
)

LOCAL_RULES: tuple[LocalRule, ...] = ("auto", "never", "always")

decode_answer = msgspec.json.Decoder(PairSelection).decode


class StoredPair(msgspec.Struct, frozen=True):
    """Pair of a request without constraints.

    reservation_id: id of the booking; None without a booking
    answer: body of the answer
    """

    partition: Partition
    pairs: PairChooser
    reservation_id: str | None
    selection_id: str | None
    answer: bytes
    record: bytes

    def restore_job(self) -> PlacementRequest:
        """Return the request behind the pair, without token lists."""
        key, numbers = (
            self.partition.key,
            np.frombuffer(self.record, np.int64, RECORD_WORDS).tolist(),
        )
        prompt = read_prompt(self.record)
        output_tokens, name = numbers[OUTPUT_TOKENS], self.reservation_id
        request = SelectPairRequest(
            selection_id=self.selection_id,
            model_name=key.model_name,
            tenant_id=key.tenant_id,
            expected_output_tokens=None if output_tokens < 0 else output_tokens,
            local=LOCAL_RULES[numbers[LOCAL]],
        )
        config = self.partition.placer.default_config
        job = PlacementRequest(self.partition, prompt, request, config, pairs=self.pairs)
        if name is None:
            return job
        booking = SelectPairAndReserveRequest(
            reservation_id=name if numbers[HAS_RESERVATION_ID] else None,
            **{field: getattr(request, field) for field in request.__struct_fields__},
        )
        return job._replace(request=booking, reserves=True, reservation_id=name)

    def restore_answer(self) -> PairSelection:
        """Return the answer."""
        return decode_answer(self.answer)


def read_prompt(record: bytes) -> Prompt:
    """Return the prompt of a record."""
    words = np.frombuffer(record, np.int64)
    # Copies, because some kernels take no arrays over constant bytes.
    hashes = words[RECORD_WORDS:].view(np.uint64)
    blocks, sequence = np.split(hashes, [int(words[N_BLOCKS])])
    return Prompt(blocks.copy(), sequence.copy(), int(words[ISL_TOKENS]))
