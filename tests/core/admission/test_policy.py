"""Tests of policy documents: rejected documents, and the class of a request."""

from copy import deepcopy

import msgspec
import pytest

from select_service.core.admission.policy_classes import (
    PolicyClassProfile,
    PolicyDocument,
    PolicyError,
    PolicyFile,
    QueueRules,
    single_class_profile,
)

DOCUMENT = """
default_policy_family: chat
uncached_isl_buckets:
  - {min_tokens: 0, bucket: short}
  - {min_tokens: 100, bucket: long}
policy_classes:
  - {name: cs, policy_family: chat, cache_bucket: short, quantum: 5}
  - {name: cl, policy_family: chat, cache_bucket: long, queue_policy: wspt}
  - {name: bs, policy_family: batch, cache_bucket: short, queue_policy: lcfs}
  - {name: bl, policy_family: batch, cache_bucket: long}
  - {name: vip, prefill_busy_threshold: 100, request_queue_limit_per_worker: 7}
"""


def the_document():
    return msgspec.yaml.decode(DOCUMENT)


def profile_of(document):
    return PolicyClassProfile(msgspec.convert(document, PolicyDocument))


def change_document(change):
    document = the_document()
    change(document)
    return document


@pytest.mark.parametrize(
    ("wanted", "uncached", "name"),
    [
        (None, 0, "cs"),
        (None, 99, "cs"),
        (None, 100, "cl"),
        (None, 10**9, "cl"),
        ("chat", 5, "cs"),
        ("batch", 5, "bs"),
        ("batch", 100, "bl"),
        ("vip", 5, "vip"),
        ("vip", 10**9, "vip"),
        ("bs", 5, "cs"),
        ("no such name", 100, "cl"),
        ("", 5, "cs"),
    ],
)
def test_family_and_bucket_name_the_class_or_the_exact_name_of_an_explicit_one(
    wanted, uncached, name
):
    profile = profile_of(the_document())
    assert profile.classes[profile.find_class(wanted, uncached)].name == name


def test_absent_fields_of_a_class_have_defaults():
    *_, vip = profile_of(the_document()).classes
    assert (vip.queue_policy, vip.quantum) == ("fcfs", 1)
    assert vip.prefill_busy_threshold_frac is None
    assert vip.raw_isl_token_queue_limit_per_worker is None
    assert vip.cached_token_queue_limit_per_worker is None


def test_without_a_file_there_is_one_class_for_everything():
    profile = single_class_profile("wspt", 0.5)
    (only,) = profile.classes
    assert (only.name, only.queue_policy, only.prefill_busy_threshold_frac) == (
        "default",
        "wspt",
        0.5,
    )
    assert profile.find_class("whatever", 10**9) == 0


def test_a_model_with_its_own_document_has_only_those_classes():
    own = single_class_profile("lcfs", 1.0)
    default = profile_of(the_document())
    rules = QueueRules(default, {"m": own})
    assert rules.profile_of("m") is own
    assert rules.profile_of("other") is default


def set_in(collection, index, **fields):
    return lambda document: document[collection][index].update(fields)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            set_in("uncached_isl_buckets", 0, min_tokens=1),
            "the first of uncached_isl_buckets must have min_tokens 0",
        ),
        (
            set_in("uncached_isl_buckets", 1, min_tokens=0),
            "min_tokens must rise from one of uncached_isl_buckets to the next",
        ),
        (
            set_in("uncached_isl_buckets", 1, bucket="short"),
            "two of uncached_isl_buckets have the same name",
        ),
        (
            set_in("policy_classes", 1, name="cs"),
            "two policy classes have the name `cs`: rename one",
        ),
        (
            lambda document: document["policy_classes"][1].pop("cache_bucket"),
            "policy class `cl` needs both policy_family and cache_bucket, or neither to be "
            "selected by its exact name",
        ),
        (
            lambda document: document["policy_classes"][1].pop("policy_family"),
            "policy class `cl` needs both policy_family and cache_bucket, or neither to be "
            "selected by its exact name",
        ),
        (
            set_in("policy_classes", 1, cache_bucket="huge"),
            "policy class `cl` has the unknown bucket `huge`: add it to uncached_isl_buckets",
        ),
        (
            set_in("policy_classes", 1, cache_bucket="short"),
            "two policy classes have the family `chat` and the bucket `short`",
        ),
        (
            lambda document: document["policy_classes"].pop(3),
            "the family `batch` has no policy class for the bucket `long`",
        ),
        (
            lambda document: document.update(default_policy_family="other"),
            "no policy class has the default_policy_family `other`",
        ),
        (
            lambda document: document.update(default_policy_family="vip"),
            "no policy class has the default_policy_family `vip`",
        ),
        (
            set_in("policy_classes", 4, name="batch"),
            "`batch` is an explicit policy class and a policy family",
        ),
    ],
)
def test_a_document_that_contradicts_itself_is_refused_with_one_line(change, text):
    with pytest.raises(PolicyError) as caught:
        profile_of(change_document(change))
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: d.update(extra=1), "unknown field `extra`"),
        (set_in("policy_classes", 0, quantums=1), "unknown field `quantums`"),
        (set_in("uncached_isl_buckets", 0, max_tokens=1), "unknown field `max_tokens`"),
        (lambda d: d.pop("default_policy_family"), "missing required field"),
        (lambda d: d.pop("policy_classes"), "missing required field"),
        (lambda d: d.update(policy_classes=[]), "length >= 1"),
        (lambda d: d.update(uncached_isl_buckets=[]), "length >= 1"),
        (lambda d: d.update(policy_classes=d["policy_classes"] * 13), "length <= 64"),
        (set_in("policy_classes", 0, queue_policy="random"), "Invalid enum value 'random'"),
        (set_in("policy_classes", 0, quantum=0), "`int` >= 1"),
        (set_in("policy_classes", 0, quantum=2**53 + 1), "`int` <= 9007199254740992"),
        (set_in("policy_classes", 0, quantum="5"), "Expected `int`, got `str`"),
        (set_in("policy_classes", 0, prefill_busy_threshold=-1), "`int` >= 0"),
        (set_in("policy_classes", 0, prefill_busy_threshold_frac=-0.5), "`float` >= 0.0"),
        (set_in("policy_classes", 0, request_queue_limit_per_worker=-1), "`int` >= 0"),
        (set_in("policy_classes", 0, name=""), "length >= 1"),
        (set_in("policy_classes", 0, name="n" * 129), "length <= 128"),
        (set_in("uncached_isl_buckets", 0, min_tokens=-1), "`int` >= 0"),
    ],
)
def test_a_malformed_document_is_rejected_with_the_place_of_the_fault(change, text):
    with pytest.raises(msgspec.ValidationError, match=text):
        msgspec.yaml.decode(msgspec.yaml.encode(change_document(change)), type=PolicyFile)


def test_models_have_documents_of_the_same_form():
    document = the_document()
    document["models"] = {"m": deepcopy(document)}
    decoded = msgspec.yaml.decode(msgspec.yaml.encode(document), type=PolicyFile)
    assert len(decoded.models["m"].policy_classes) == 5
    document["models"]["m"]["models"] = {}
    with pytest.raises(msgspec.ValidationError, match="unknown field `models`"):
        msgspec.convert(document, PolicyFile)
