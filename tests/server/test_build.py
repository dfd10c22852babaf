"""Tests of the composition root: a fixed context, with a null object for every disabled feature."""

import dataclasses

import pytest

from select_service.base.errors import Conflict
from tests.builders.in_process import Api


def test_no_component_of_a_context_is_replaced_after_it_was_built():
    with Api() as api:
        for field in dataclasses.fields(api.service):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(api.service, field.name, None)


def test_disabled_features_answer_as_features_without_content():
    with Api() as api:
        replicas, discovery, *others = api.service.features
        assert others == [None, None, None]
        assert replicas.peer_endpoints() == []
        assert not replicas.replica_status().enabled
        for change in (replicas.register_peer, replicas.deregister_peer):
            with pytest.raises(Conflict, match="--replica-sync-port enables it"):
                change("tcp://peer:1")
        assert discovery.owning_source(1) is None
        assert (discovery.discovery_view().sources, discovery.source_reports()) == ([], ())
        assert not api.service.persistence.policy_store.is_written


def test_tasks_of_enabled_features_are_counted_from_the_start(tmp_path):
    with Api("--audit-log", str(tmp_path / "audit")) as api:
        assert {"audit", "history", "expiry"} <= api.service.figures.tasks.keys()
