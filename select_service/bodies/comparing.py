"""HTTP bodies that compare policies."""

from msgspec import Struct


class ExtraTokens(Struct, kw_only=True):
    """Tokens above the least of the candidates, a mean over the decisions."""

    wait: float
    """Work before the prompt."""
    prefill: float
    """What the prompt itself would compute."""


class ShadowRow(Struct, kw_only=True):
    """Decisions of one policy, as another sees them."""

    policy: str
    """Policy that decided."""
    decisions: int
    """Decisions that were compared."""
    other: int
    """Those of them in which the other policy would not have chosen the same."""
    no_choice: int
    """Decisions between a single candidate; in no other number."""
    partial: int
    """Compared ones with more candidates than are kept, so that the other policy might have chosen
    one that it did not see."""
    regret: float
    """What the other policy gives for the choices that were made, above the lowest of its costs: a
    mean over the decisions, in the unit of its cost."""
    lowest_cost: float
    """The mean of those lowest costs."""
    made: ExtraTokens
    """Of the choices that were made."""
    shadow: ExtraTokens
    """Of the choices that the other policy would have made."""


class ShadowState(Struct, kw_only=True):
    """What another policy would have chosen, since the start."""

    shadow_policy: str
    """That policy, with its options."""
    skipped: int
    """Decisions that it did not look at, because there were too many."""
    backlog: int
    """Decisions that it is still to look at."""
    policies: list[ShadowRow]
    """By the policy that decided."""
