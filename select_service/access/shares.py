"""What of the limits of the process one key, and the keys of one tenant, may use.

A limit (connections, calls that wait, workers, ...) is there for all callers.  Where keys are on,
each key has a share of it, and so has each tenant, whichever keys are bound to it, so that one of
them cannot lock the others out.  What a key of several tenants uses counts for each of them.  A
quota in the file of keys takes the place of the share of its key.  Without keys everybody may use
all of it.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from select_service.access.api_key import ApiKey
from select_service.errors import CapacityExceeded, QuotaExceeded

Tenants: TypeAlias = frozenset[str]
RETRY_AFTER_S = 1
"""Where nobody knows when there is room again."""


class ShareRules(NamedTuple):
    """Parts of every limit, above 0 and at most 1.

    bound_key: of a key that is bound to tenants;  tenant: of all keys together that are bound to it
    unbound_key: of a key that is bound to none
    """

    bound_key: float = 0.25
    tenant: float = 0.5
    unbound_key: float = 0.875


class Holder:
    """Who uses something: a key, for its tenants.

    tenants: to which the key is bound; None: to none, or there is no key
    """

    __slots__ = ("_rules", "key", "name", "tenants")

    def __init__(self, key: ApiKey | None, rules: ShareRules) -> None:
        """key: None: there are no keys, so that there are no shares"""
        self.key, self._rules = key, rules
        self.name = None if key is None else key.name
        self.tenants: Tenants | None = None if key is None else key.tenants

    def share(self, limit: "SharedLimit") -> int:
        """Return what the key may use of a limit."""
        if self.key is None:
            return limit.total
        quota: int | None = getattr(self.key.quotas, limit.name)
        if quota is not None:
            return quota
        part = self._rules.unbound_key if self.tenants is None else self._rules.bound_key
        return part_of(limit.total, part)

    def tenant_share(self, limit: "SharedLimit") -> int:
        """Return what all keys of one of its tenants may use of a limit."""
        if self.tenants is None:
            return limit.total
        return part_of(limit.total, self._rules.tenant)


NOBODY = Holder(None, ShareRules())
"""Of everybody where there are no keys."""


def part_of(total: int, part: float) -> int:
    """Return a part of a limit, at least 1."""
    return max(1, int(total * part))


class Refused(NamedTuple):
    """To whom a share was refused: `scope` says whose share, of the key or of its tenants."""

    key: str
    scope: str


class SharedLimit:
    """One limit of the process, and who uses how much of it.

    name:  as in quotas, metrics and GET /config;  total: what there is
    unit:  what is counted, in the plural;  advice: what a caller can do who has no more
    refusals: of a share, since the start
    """

    def __init__(self, name: str, total: int, unit: str, advice: str) -> None:
        self.name, self.total, self.unit, self._advice = name, total, unit, advice
        self.used = 0
        self.by_key: Counter[str] = Counter()
        self.by_tenant: Counter[str] = Counter()
        self.refusals: Counter[Refused] = Counter()

    def take(self, holder: Holder = NOBODY, n: int = 1, tenants: Tenants | None = None) -> None:
        """Use n more.  Raises CapacityExceeded, QuotaExceeded, changing nothing.

        tenants: for which, where that is known better than by the key
        """
        if holder.name is not None:
            tenants = tenants or holder.tenants
            of_tenant = max((self.by_tenant[each] for each in tenants or ()), default=0)
            self.refuse_beyond_share(holder, n, self.by_key[holder.name], of_tenant)
        if self.used + n > self.total:
            raise CapacityExceeded(
                f"{self.name}: all {self.total} {self.unit} are in use; ask again later"
            )
        self.used += n
        self._count(holder, n, tenants)

    def give_back(
        self, holder: Holder = NOBODY, n: int = 1, tenants: Tenants | None = None
    ) -> None:
        """Use n less; the other arguments as of `take`."""
        assert self.used >= n
        self.used -= n
        self._count(holder, -n, tenants or holder.tenants)

    def refuse_beyond_share(self, holder: Holder, n: int, by_key: int, by_tenant: int) -> None:
        """Raises QuotaExceeded when n more than are used is more than a share.

        by_key, by_tenant: what is used, by the tenant of the key that uses most
        """
        if holder.name is None:
            return
        if by_key + n > (share := holder.share(self)):
            raise self._refusal(holder, "key", f"the key `{holder.name}`", by_key, share)
        if holder.tenants is not None and by_tenant + n > (share := holder.tenant_share(self)):
            owner = f"a tenant of the key `{holder.name}`, by all keys that are bound to it,"
            raise self._refusal(holder, "tenant", owner, by_tenant, share)

    def _refusal(
        self, holder: Holder, scope: str, owner: str, used: int, share: int
    ) -> QuotaExceeded:
        assert holder.name is not None
        self.refusals[Refused(holder.name, scope)] += 1
        raised = f"`quotas.{self.name}` of the key" if scope == "key" else "--tenant-share"
        refusal = QuotaExceeded(
            f"{self.name}: {owner} may use {share} of {self.total} {self.unit} and uses {used}; "
            f"{self._advice}, or ask the operator for more ({raised})"
        )
        refusal.details = {"limit": self.name, "of": scope, "share": share, "used": used}
        refusal.retry_after_s = RETRY_AFTER_S
        return refusal

    def _count(self, holder: Holder, n: int, tenants: Tenants | None) -> None:
        if holder.name is None:
            return
        _add(self.by_key, holder.name, n)
        for tenant in tenants or ():
            _add(self.by_tenant, tenant, n)


def _add(counts: Counter[str], of: str, n: int) -> None:
    """Those that use nothing have no entry."""
    counts[of] += n
    if not counts[of]:
        del counts[of]


def shares_of(limits: Iterable[SharedLimit], holder: Holder) -> dict[str, int]:
    """Return the share of a key by the names of the limits."""
    return {limit.name: holder.share(limit) for limit in limits}
