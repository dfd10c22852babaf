"""Load shedding: refusal of whole priority tiers, by operators or for degraded models."""

from select_service.base.errors import CapacityShed, SelectError
from select_service.core.admission.load_shed_rule import NO_LOAD_SHEDDING, LoadShedRule
from select_service.core.admission.outcome_counters import AdmissionCounters
from select_service.core.admission.priority_tiers import SHED_RETRY_AFTER_S, PriorityTiers
from select_service.core.identity import PartitionKey
from select_service.core.placement.prompt import partition_key_of
from select_service.schemas.selection import SelectRequest


class ShedTiers:
    """Shed tier of the operators and the rules of degraded models; the stricter applies.

    rules: load-shedding rules of degraded models, by model
    """

    def __init__(self, tiers: PriorityTiers, tally: AdmissionCounters) -> None:
        """Start without rules.  tally: counts refusals"""
        self.tiers = tiers
        self.rules: dict[str, LoadShedRule] = {}
        self._tally = tally

    @property
    def is_active(self) -> bool:
        """Whether any tier of any model is refused, or the limits of any model are reduced."""
        return self.tiers.is_shedding or bool(self.rules)

    def restricts_model(self, model_name: str) -> bool:
        """Return whether a tier of this model is refused or a limit reduced."""
        return self.tiers.is_shedding or model_name in self.rules

    def rule_of(self, model_name: str) -> LoadShedRule:
        return self.rules.get(model_name, NO_LOAD_SHEDDING)

    def set_rule(self, model_name: str, rule: LoadShedRule | None) -> None:
        """Set or, with None, remove the rule of a model."""
        self.rules.pop(model_name, None)
        if rule is not None:
            self.rules[model_name] = rule

    def is_shed(self, model_name: str, tier: int) -> bool:
        """Return whether a tier is shed by the operators or by the rule of the model."""
        return self.tiers.is_shed(tier) or self.rule_of(model_name).sheds_tier(tier)

    def check_request(self, request: SelectRequest) -> None:
        """Raise BadRequest for an unknown tier, the error of `refuse_tier` for a shed tier."""
        tier = self.tiers.index_of(request.priority_tier)
        if self.is_shed(request.model_name, tier):
            raise self.refuse_tier(partition_key_of(request), tier)

    def refuse_tier(self, key: PartitionKey, tier: int) -> SelectError:
        """Count a refusal of a shed tier and return its error."""
        name = self.tiers.names[tier]
        self._tally.count_refusal("shed", key)
        self._tally.shed_tiers[name] += 1
        error = CapacityShed(f"capacity_shed: tier={name}")
        error.retry_after_s = SHED_RETRY_AFTER_S
        return self.rule_of(key.model_name).make_error(error)
