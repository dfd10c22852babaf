"""Policy classes: the queue of a request, the order of service, and the limits of the queue.

A client names a *family* (header `x-dynamo-meta-policy-class`).  The uncached prompt tokens (cached
on no candidate) select a *bucket*.  Family and bucket together select one class.  A class without
family and bucket is *explicit*: only its exact name selects it.  Unknown names count as the default
family.

Source: the policy file of the reference (Dynamo router, "Policy-Class Queues"); `lcfs`, `work`
and `fairness_weights` are extensions.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Struct

CLASSES_MAX = 64
BUCKETS_MAX = 64
MODELS_MAX = 1024
CLASS_NAME_CHARS_MAX = 128
TOKENS_MAX = 2**53
WEIGHTS_MAX = 1024
WEIGHT_MIN, WEIGHT_MAX = 0.001, 1000.0

QueuePolicy = Literal["fcfs", "wspt", "lcfs", "work"]

_Name = Annotated[str, Meta(min_length=1, max_length=CLASS_NAME_CHARS_MAX)]
_Count = Annotated[int, Meta(ge=0, le=TOKENS_MAX)]
_Weight = Annotated[float, Meta(ge=WEIGHT_MIN, le=WEIGHT_MAX)]


HeadroomParameters = tuple[bool, int | None, float | None]
"""Whether remaining work counts, and both limits."""


class PolicyError(ValueError):
    """Error in a policy document, described in one line."""


class PolicyClass(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Policy class: the rules of a queue.

    quantum: tokens of credit per round of the deficit round robin
    prefill_busy_threshold, ..._frac: a rank is busy for this class when its active prefill tokens
        exceed the first, or the second times its max_num_batched_tokens.  Without either, the
        factor
        is 16.  With the queue policy `work` the remaining work must exceed both (see
        `headroom_parameters`)
    ..._limit_per_worker: limits of the queue, multiplied by the number of workers
    fairness_weights: shares of the room by fairness_id; 1 for others
    """

    name: _Name
    policy_family: _Name | None = None
    cache_bucket: _Name | None = None
    queue_policy: QueuePolicy = "fcfs"
    quantum: Annotated[int, Meta(ge=1, le=TOKENS_MAX)] = 1
    prefill_busy_threshold: _Count | None = None
    prefill_busy_threshold_frac: Annotated[float, Meta(ge=0.0)] | None = None
    request_queue_limit_per_worker: _Count | None = None
    raw_isl_token_queue_limit_per_worker: _Count | None = None
    cached_token_queue_limit_per_worker: _Count | None = None
    fairness_weights: Annotated[dict[_Name, _Weight], Meta(max_length=WEIGHTS_MAX)] = {}

    @property
    def waits_for_work(self) -> bool:
        """Whether remaining work, instead of load, determines room."""
        return self.queue_policy == "work"

    @property
    def headroom_parameters(self) -> HeadroomParameters:
        """Parameters that determine the ranks with room for this class."""
        return self.waits_for_work, self.prefill_busy_threshold, self.prefill_busy_threshold_frac


class CacheBucket(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bucket of prompts with at least `min_tokens` uncached tokens, up to the next bucket."""

    min_tokens: _Count
    bucket: _Name


class PolicyDocument(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Classes of all models without a document of their own."""

    default_policy_family: _Name
    uncached_isl_buckets: Annotated[list[CacheBucket], Meta(min_length=1, max_length=BUCKETS_MAX)]
    policy_classes: Annotated[list[PolicyClass], Meta(min_length=1, max_length=CLASSES_MAX)]


class PolicyFile(PolicyDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Policy document, with complete replacements for single models."""

    models: Annotated[dict[_Name, PolicyDocument], Meta(max_length=MODELS_MAX)] = {}


class PolicyClassProfile:
    """Validated classes of a model, with the mapping from requests to classes."""

    def __init__(self, document: PolicyDocument) -> None:
        """Validate a document.

        Raises PolicyError unless every pair of family and bucket selects exactly one class.
        """
        self.classes: Sequence[PolicyClass] = tuple(document.policy_classes)
        # Lets the gate skip the size of the prompt, which needs an index lookup.
        self.only_class = self.classes[0] if len(self.classes) == 1 else None
        """Class of all requests, if there is only one class."""
        self.waits_for_work = any(each.waits_for_work for each in self.classes)
        # Later classes with equal parameters replace earlier ones: each kind of room occurs once.
        self.headroom_classes: Sequence[PolicyClass] = tuple(
            {c.headroom_parameters: c for c in self.classes}.values()
        )
        """One class for each different way to have room."""
        self._floors = [bucket.min_tokens for bucket in document.uncached_isl_buckets]
        self._buckets = [bucket.bucket for bucket in document.uncached_isl_buckets]
        self.default_family = document.default_policy_family
        self._explicit = {c.name: i for i, c in enumerate(self.classes) if c.policy_family is None}
        self._matrix: dict[str, dict[str, int]] = {}
        _check_buckets(document.uncached_isl_buckets)
        _check_names(self.classes)
        self._fill_matrix()
        self._check_matrix()

    def is_known_name(self, name: str) -> bool:
        """Return whether the name is a family or an explicit class; others count as the default
        family.
        """
        return name in self._matrix or name in self._explicit

    def selectable_names(self) -> Sequence[str]:
        """Return the names a request may use."""
        return (*self._matrix, *self._explicit)

    def find_class(self, name: str | None, uncached_tokens: int) -> int:
        """Return the index of the class of a request."""
        if name in self._explicit:
            return self._explicit[name]
        family = self._matrix.get(name or self.default_family)
        # Unknown families count as the default one, like in the reference.
        family = family or self._matrix[self.default_family]
        return family[self._buckets[bisect_right(self._floors, uncached_tokens) - 1]]

    def _fill_matrix(self) -> None:
        for index, each in enumerate(self.classes):
            if each.policy_family is None or each.cache_bucket is None:
                if each.policy_family is not None or each.cache_bucket is not None:
                    raise PolicyError(
                        f"policy class `{each.name}` needs both policy_family and cache_bucket, "
                        "or neither to be selected by its exact name"
                    )
                continue
            row = self._matrix.setdefault(each.policy_family, {})
            if each.cache_bucket not in self._buckets:
                raise PolicyError(
                    f"policy class `{each.name}` has the unknown bucket `{each.cache_bucket}`: "
                    "add it to uncached_isl_buckets"
                )
            if each.cache_bucket in row:
                raise PolicyError(
                    f"two policy classes have the family `{each.policy_family}` and the bucket "
                    f"`{each.cache_bucket}`"
                )
            row[each.cache_bucket] = index

    def _check_matrix(self) -> None:
        for family, row in self._matrix.items():
            missing = [bucket for bucket in self._buckets if bucket not in row]
            if missing:
                raise PolicyError(
                    f"the family `{family}` has no policy class for the bucket `{missing[0]}`"
                )
        if self.default_family not in self._matrix:
            raise PolicyError(
                f"no policy class has the default_policy_family `{self.default_family}`"
            )
        both = self._explicit.keys() & self._matrix.keys()
        if both:
            raise PolicyError(f"`{min(both)}` is an explicit policy class and a policy family")


def _check_buckets(buckets: Sequence[CacheBucket]) -> None:
    floors = [bucket.min_tokens for bucket in buckets]
    if floors[0] != 0:
        raise PolicyError("the first of uncached_isl_buckets must have min_tokens 0")
    if any(low >= high for low, high in pairwise(floors)):
        raise PolicyError("min_tokens must rise from one of uncached_isl_buckets to the next")
    names = [bucket.bucket for bucket in buckets]
    if len(set(names)) < len(names):
        raise PolicyError("two of uncached_isl_buckets have the same name")


def _check_names(classes: Sequence[PolicyClass]) -> None:
    names = [each.name for each in classes]
    for name in names:
        if names.count(name) > 1:
            raise PolicyError(f"two policy classes have the name `{name}`: rename one")


class QueueBounds(NamedTuple):
    """Limits of all waiting requests of the process, besides those of the classes."""

    requests_max: int = 4096
    isl_tokens_max: int = 64_000_000


class QueueRules:
    """Classes of each model, with queueing on."""

    def __init__(
        self,
        default: PolicyClassProfile,
        of_model: Mapping[str, PolicyClassProfile] | None = None,
        *,
        timeout_s: float = 0.0,
        bounds: QueueBounds | None = None,
    ) -> None:
        """Build the rules.

        timeout_s: maximum waiting time, seconds; 0 = for ever
        """
        self._default = default
        self._of_model = dict(of_model or {})
        self.timeout_s = timeout_s
        self.bounds = bounds or QueueBounds()
        self.waits_for_work = any(
            profile.waits_for_work for profile in (default, *self._of_model.values())
        )
        """Whether remaining work determines room for any class."""

    def profile_of(self, model_name: str) -> PolicyClassProfile:
        return self._of_model.get(model_name, self._default)


def single_class_profile(policy: QueuePolicy, threshold_frac: float) -> PolicyClassProfile:
    """Return the profile used without a policy file: one class for all requests."""
    only = PolicyClass(
        name="default",
        policy_family="default",
        cache_bucket="all",
        queue_policy=policy,
        prefill_busy_threshold_frac=threshold_frac,
    )
    return PolicyClassProfile(
        PolicyDocument(
            default_policy_family="default",
            uncached_isl_buckets=[CacheBucket(min_tokens=0, bucket="all")],
            policy_classes=[only],
        )
    )
