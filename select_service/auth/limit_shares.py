"""Shares of the process limits for each key and each tenant.

A limit (connections, waiting calls, workers, ...) applies to all callers together.  With keys, each
key and each tenant (over all keys bound to the tenant) has a share, so that no caller can lock
others out.  Usage by a key of several tenants counts for each of them.  A quota in the file of keys
replaces the share of that key.  Without keys every caller may use the whole limit.
"""

from collections import Counter
from typing import NamedTuple, TypeAlias

from select_service.auth.api_key import ApiKey
from select_service.base.errors import CapacityExceeded, QuotaExceeded

Tenants: TypeAlias = frozenset[str]
RETRY_AFTER_S = 1
"""`Retry-After` where the time until capacity is free is unknown, seconds."""


class ShareRules(NamedTuple):
    """Fractions of every limit, above 0 and at most 1.

    bound_key: share of a key bound to tenants;  tenant: share of a tenant over all its bound keys
    unbound_key: share of a key without tenants
    """

    bound_key: float = 0.25
    tenant: float = 0.5
    unbound_key: float = 0.875


class Holder:
    """Owner of resources: a key, on behalf of its tenants.

    tenants: tenants the key is bound to; None means unbound, or no key
    """

    __slots__ = ("_rules", "key", "name", "tenants")

    def __init__(self, key: ApiKey | None, rules: ShareRules) -> None:
        """key: None means keys are off, hence no shares"""
        self.key, self._rules = key, rules
        self.name = None if key is None else key.name
        self.tenants: Tenants | None = None if key is None else key.tenants

    def share_of(self, limit: "SharedLimit") -> int:
        """Return the share of the key in a limit."""
        if self.key is None:
            return limit.total
        quota: int | None = getattr(self.key.quotas, limit.name)
        if quota is not None:
            return quota
        part = self._rules.unbound_key if self.tenants is None else self._rules.bound_key
        return fraction_of_limit(limit.total, part)

    def tenant_share_of(self, limit: "SharedLimit") -> int:
        """Return the share of each of its tenants in a limit."""
        if self.tenants is None:
            return limit.total
        return fraction_of_limit(limit.total, self._rules.tenant)


UNKEYED_HOLDER = Holder(None, ShareRules())
"""Holder for all callers where keys are off."""


def fraction_of_limit(total: int, part: float) -> int:
    """Return a fraction of a limit, at least 1."""
    return max(1, int(total * part))


class ShareRefusal(NamedTuple):
    """Refusal because of a share.  scope: `key` or `tenant`, the owner of the share"""

    key: str
    scope: str


class SharedLimit:
    """Limit of the process, with usage by key and tenant.

    name:  name in quotas, metrics and GET /config;  total: the limit
    unit:  counted things, in the plural;  advice: suggestion to callers at the limit
    refusals: refusals because of a share, since the start
    """

    def __init__(self, name: str, total: int, unit: str, advice: str) -> None:
        self.name, self.total, self.unit, self._advice = name, total, unit, advice
        self.used = 0
        self.by_key: Counter[str] = Counter()
        self.by_tenant: Counter[str] = Counter()
        self.refusals: Counter[ShareRefusal] = Counter()

    def take(
        self, holder: Holder = UNKEYED_HOLDER, n: int = 1, tenants: Tenants | None = None
    ) -> None:
        """Use n more.  Raises CapacityExceeded, QuotaExceeded without any change.

        tenants: actual tenants, where known more precisely than from the key
        """
        if holder.name is not None:
            tenants = tenants or holder.tenants
            # A key of several tenants is limited by the fullest of them.
            of_tenant = max((self.by_tenant[each] for each in tenants or ()), default=0)
            self.check_share(holder, n, self.by_key[holder.name], of_tenant)
        if self.used + n > self.total:
            raise CapacityExceeded(
                f"{self.name}: all {self.total} {self.unit} are in use; retry later"
            )
        self.used += n
        self._add_usage(holder, n, tenants)

    def give_back(
        self, holder: Holder = UNKEYED_HOLDER, n: int = 1, tenants: Tenants | None = None
    ) -> None:
        """Use n less; other arguments as for `take`."""
        assert self.used >= n
        self.used -= n
        self._add_usage(holder, -n, tenants or holder.tenants)

    def check_share(self, holder: Holder, n: int, by_key: int, by_tenant: int) -> None:
        """Raise QuotaExceeded if n more would exceed a share.

        by_key, by_tenant: current usage, of the key's tenant with the highest usage
        """
        if holder.name is None:
            return
        if by_key + n > (share := holder.share_of(self)):
            raise self._make_refusal(holder, "key", f"the key `{holder.name}`", by_key, share)
        if holder.tenants is not None and by_tenant + n > (share := holder.tenant_share_of(self)):
            owner = f"a tenant of the key `{holder.name}`, over all keys bound to the tenant,"
            raise self._make_refusal(holder, "tenant", owner, by_tenant, share)

    def _make_refusal(
        self, holder: Holder, scope: str, owner: str, used: int, share: int
    ) -> QuotaExceeded:
        assert holder.name is not None
        self.refusals[ShareRefusal(holder.name, scope)] += 1
        raised = f"`quotas.{self.name}` of the key" if scope == "key" else "--tenant-share"
        refusal = QuotaExceeded(
            f"{self.name}: {owner} may use {share} of {self.total} {self.unit} and uses {used}; "
            f"{self._advice}, or ask the operator for more ({raised})"
        )
        refusal.details = {"limit": self.name, "of": scope, "share": share, "used": used}
        refusal.retry_after_s = RETRY_AFTER_S
        return refusal

    def _add_usage(self, holder: Holder, n: int, tenants: Tenants | None) -> None:
        if holder.name is None:
            return
        _add_count(self.by_key, holder.name, n)
        for tenant in tenants or ():
            _add_count(self.by_tenant, tenant, n)


def _add_count(counts: Counter[str], of: str, n: int) -> None:
    """Add to a count; counts of zero are removed."""
    counts[of] += n
    if not counts[of]:
        del counts[of]
