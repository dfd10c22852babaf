"""Fields of a slot in the array of a plan that compares the slots with a shared cache."""

(
    SHARED_TOKENS,  # leading tokens of the prompt that the cache holds for the slot
    SHARED_VALUE,  # credit for one of them
    SHARED_MISSING,  # those of them that the slot does not hold itself, filled by the match
    SHARED_CREDIT,  # credit of the slot in tokens, filled by the match
) = range(4)
SHARED_FIELDS = 4
