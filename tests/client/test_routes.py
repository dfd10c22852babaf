"""Tests of the table of routes against the document of the application."""

import inspect
from types import UnionType
from typing import get_args

import msgspec
import pytest

from select_service.api.documentation import ENDPOINT_GROUPS
from select_service.client import AsyncSelector, Selector, route_table
from select_service.client.lease_fields import LeaseFields, PairLeaseFields
from select_service.client.route_table import (
    STREAMED,
    ClientRoute,
    SelectorRoutes,
    non_default_fields,
)
from select_service.schemas.pairs import SelectPairAndReserveRequest
from select_service.schemas.reservations import OutputBlockRequest
from select_service.schemas.selection import SelectAndReserveRequest, SelectRequest
from select_service.schemas.workers import WorkerPatch

ALL_NAMES = {**vars(SelectorRoutes), **vars(route_table)}
TABLE = {name: each for name, each in ALL_NAMES.items() if isinstance(each, ClientRoute)}
DECLARED = {
    f"{endpoint.route.method} {endpoint.route.path}": endpoint.route
    for noun in ENDPOINT_GROUPS
    for endpoint in noun.endpoints
}
OF_BROWSERS = {"GET /", "GET /page/{file}", "GET /live"}
MADE_OF_STRUCTS_OF_THE_SERVER = {"GET /config"}
OF_SELECTORS = {"n", "repeat", "include_hashes", "return_hashes", "advisory"}
"""Fields that a client sets itself, that a lease does not keep, or that book nothing."""


def test_no_route_is_missing_and_none_is_made_up():
    named = [f"{route.method} {route.path}" for route in TABLE.values()]
    assert len(named) == len(set(named))
    assert {*named, *STREAMED} == set(DECLARED) - OF_BROWSERS


@pytest.mark.parametrize("name", TABLE)
def test_a_route_answers_as_in_the_document(name):
    route = TABLE[name]
    declared = DECLARED[f"{route.method} {route.path}"]
    good = {
        status: a for status, a in declared.answers.items() if status not in route.good_statuses
    }
    for answer in good.values():
        if answer.media_type == "application/json":
            if f"{route.method} {route.path}" not in MADE_OF_STRUCTS_OF_THE_SERVER:
                assert route.answer == _default_form(answer.type)
        else:
            assert route.answer is (str if answer.media_type else type(None))
    assert set(route.good_statuses) == {status for status in declared.answers if status >= 300}


def _default_form(kind):
    """Return the whole form of a long list: a client of Python requests no columns."""
    return get_args(kind)[0] if isinstance(kind, UnionType) else kind


@pytest.mark.parametrize("name", TABLE)
def test_every_route_is_a_method_of_both_faces(name):
    for face in (AsyncSelector, Selector):
        method = inspect.getattr_static(face, name.lower())
        assert method is TABLE[name] if isinstance(method, ClientRoute) else callable(method)


@pytest.mark.parametrize("method", STREAMED.values())
def test_every_stream_is_a_method(method):
    assert callable(getattr(AsyncSelector, method))


def test_a_lease_takes_every_field_of_the_body():
    fields = {field.name for field in msgspec.structs.fields(SelectAndReserveRequest)}
    assert set(LeaseFields.__annotations__) == fields - OF_SELECTORS


def test_a_lease_of_a_pair_takes_every_field_of_the_body():
    fields = {field.name for field in msgspec.structs.fields(SelectPairAndReserveRequest)}
    assert set(PairLeaseFields.__annotations__) == fields - OF_SELECTORS


def test_fields_as_they_are_when_left_out_are_not_sent():
    assert non_default_fields(SelectRequest(token_ids=[1])) == {"token_ids": [1]}
    assert non_default_fields(OutputBlockRequest()) == {}
    assert non_default_fields(WorkerPatch(taints=[])) == {"taints": []}


def test_a_drain_names_its_caller():
    assert (
        SelectorRoutes.drain.make_call(1).fields == SelectorRoutes.undrain.make_call(1).fields == {}
    )
    assert SelectorRoutes.drain.make_call(1, migrate=False, by="planner").fields == {
        "migrate": False,
        "by": "planner",
    }
    assert SelectorRoutes.undrain.make_call(1, by="planner").fields == {"by": "planner"}


def test_ids_are_encoded_in_paths():
    assert (
        SelectorRoutes.free.make_call("a/b c", "ok").target == "/reservations/a%2Fb%20c?outcome=ok"
    )
    assert SelectorRoutes.reservation.make_call("a/b").target == "/reservations/a%2Fb"
    assert SelectorRoutes.reservations.make_call(worker_id=0, sequence_hashes=True).target == (
        "/reservations?worker_id=0&sequence_hashes=true"
    )
