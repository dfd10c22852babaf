"""Policy classes: in which queue a request waits, in which order that queue is served, and how full
it may get.

A client names a *family* (header `x-dynamo-meta-policy-class`); the service knows how many tokens
of the prompt no candidate has cached, which puts it in a *bucket*; family and bucket together name
one class.  A class without family and bucket is *explicit*: only its exact name selects it.
Unknown names count as the default family.

Source: the policy file of the reference (Dynamo router, "Policy-Class Queues"); `lcfs` and `work`
are ours.
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

QueuePolicy = Literal["fcfs", "wspt", "lcfs", "work"]

_Name = Annotated[str, Meta(min_length=1, max_length=CLASS_NAME_CHARS_MAX)]
_Count = Annotated[int, Meta(ge=0, le=TOKENS_MAX)]


class PolicyError(ValueError):
    """One line that says what is wrong with a policy document."""


class PolicyClass(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One queue.

    quantum: tokens of credit per round of the deficit round robin
    prefill_busy_threshold, ..._frac: a rank is busy for this class when its active prefill tokens
        exceed the first, or the second times its max_num_batched_tokens; none given: 16 times.
        With the queue policy `work` its work left must exceed both (see `room`)
    ..._limit_per_worker: bounds of what may wait, times the number of workers
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

    @property
    def holds(self) -> bool:
        """Is room for it said by the work that is left, and not by the load?"""
        return self.queue_policy == "work"

    @property
    def room(self) -> tuple[bool, int | None, float | None]:
        """What says on which ranks there is room for it."""
        return self.holds, self.prefill_busy_threshold, self.prefill_busy_threshold_frac


class Bucket(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Prompts of at least `min_tokens` uncached tokens, up to the next bucket."""

    min_tokens: _Count
    bucket: _Name


class PolicyDocument(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The classes of every model that has none of its own."""

    default_policy_family: _Name
    uncached_isl_buckets: Annotated[list[Bucket], Meta(min_length=1, max_length=BUCKETS_MAX)]
    policy_classes: Annotated[list[PolicyClass], Meta(min_length=1, max_length=CLASSES_MAX)]


class PolicyFile(PolicyDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The document and those of single models, which replace it as a whole."""

    models: Annotated[dict[_Name, PolicyDocument], Meta(max_length=MODELS_MAX)] = {}


class Profile:
    """The classes of one model, checked, and the way from a request to its class."""

    def __init__(self, document: PolicyDocument) -> None:
        """Raises PolicyError unless every pair of family and bucket names exactly one class."""
        self.classes: Sequence[PolicyClass] = tuple(document.policy_classes)
        self.only = self.classes[0] if len(self.classes) == 1 else None
        """The class of all requests, if there are no others."""
        self.holds = any(each.holds for each in self.classes)
        self.only_by_load = None if self.holds else self.only
        self.rooms: Sequence[PolicyClass] = tuple({c.room: c for c in self.classes}.values())
        """One class for each way to have room."""
        self._floors = [bucket.min_tokens for bucket in document.uncached_isl_buckets]
        self._buckets = [bucket.bucket for bucket in document.uncached_isl_buckets]
        self.default_family = document.default_policy_family
        self._explicit = {c.name: i for i, c in enumerate(self.classes) if c.policy_family is None}
        self._matrix: dict[str, dict[str, int]] = {}
        _check_buckets(document.uncached_isl_buckets)
        _check_names(self.classes)
        self._fill_matrix()
        self._check_matrix()

    def knows(self, wanted: str) -> bool:
        """Is it a family or an explicit class?  If not, it counts as the default family."""
        return wanted in self._matrix or wanted in self._explicit

    def names(self) -> Sequence[str]:
        """What a request may ask for."""
        return (*self._matrix, *self._explicit)

    def class_of(self, wanted: str | None, uncached_tokens: int) -> int:
        """Index of the class of a request."""
        if wanted in self._explicit:
            return self._explicit[wanted]
        family = self._matrix.get(wanted or self.default_family)
        family = family or self._matrix[self.default_family]
        return family[self._buckets[bisect_right(self._floors, uncached_tokens) - 1]]

    def _fill_matrix(self) -> None:
        for index, each in enumerate(self.classes):
            if each.policy_family is None or each.cache_bucket is None:
                if each.policy_family is not None or each.cache_bucket is not None:
                    raise PolicyError(
                        f"policy class `{each.name}` must have both policy_family and "
                        "cache_bucket, or neither to be chosen by its name alone"
                    )
                continue
            row = self._matrix.setdefault(each.policy_family, {})
            if each.cache_bucket not in self._buckets:
                raise PolicyError(
                    f"policy class `{each.name}` names the bucket `{each.cache_bucket}`, which is "
                    "not among uncached_isl_buckets"
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


def _check_buckets(buckets: Sequence[Bucket]) -> None:
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
            raise PolicyError(f"two policy classes are called `{name}`")


class QueueBounds(NamedTuple):
    """What may wait in the whole process, whatever the classes allow."""

    requests_max: int = 4096
    isl_tokens_max: int = 64_000_000


class QueueRules:
    """Which classes each model has, when queueing is on."""

    def __init__(
        self,
        default: Profile,
        of_model: Mapping[str, Profile] | None = None,
        *,
        timeout_s: float = 0.0,
        bounds: QueueBounds | None = None,
    ) -> None:
        """timeout_s: how long a request waits at most; 0 = for ever."""
        self._default = default
        self._of_model = dict(of_model or {})
        self.timeout_s = timeout_s
        self.bounds = bounds or QueueBounds()
        self.holds = any(profile.holds for profile in (default, *self._of_model.values()))
        """Does any class have room by the work that is left?"""

    def profile(self, model_name: str) -> Profile:
        return self._of_model.get(model_name, self._default)


def single_class(policy: QueuePolicy, threshold_frac: float) -> Profile:
    """The profile without a policy file: one class for everything."""
    only = PolicyClass(
        name="default",
        policy_family="default",
        cache_bucket="all",
        queue_policy=policy,
        prefill_busy_threshold_frac=threshold_frac,
    )
    return Profile(
        PolicyDocument(
            default_policy_family="default",
            uncached_isl_buckets=[Bucket(min_tokens=0, bucket="all")],
            policy_classes=[only],
        )
    )
