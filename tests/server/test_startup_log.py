"""Tests of the warnings that a start logs about settings."""

import logging

from select_service.config.settings_loader import parse_config
from select_service.server.startup_log import log_startup


def warnings_of(caplog, *flags, **environment):
    caplog.clear()
    with caplog.at_level(logging.INFO, "select_service"):
        log_startup(parse_config(flags, environment), "1.2.3", "127.0.0.1", 1)
    found = [record for record in caplog.records if record.levelno == logging.WARNING]
    return [(record.getMessage(), record.fields) for record in found]


def test_dynamos_expiry_is_reported_as_a_lease(caplog):
    origin = "environment DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS"
    said = "expiry is a lease here, renewed by every call"
    environment = {"DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS": "60"}
    fields = {"setting": origin, "lease_s": 60.0, "lease_of": origin}
    assert warnings_of(caplog, **environment) == [(said, fields)]
    given = warnings_of(caplog, "--reservation-ttl-secs", "7", **environment)
    assert given == [(said, {**fields, "lease_s": 7.0, "lease_of": "command line"})]
    assert warnings_of(caplog) == []


def test_variables_without_effect_are_reported_once_each(caplog):
    environment = {"DYN_SHARED_CACHE_TYPE": "none", "DYN_ROUTER_EVENT_THREADS": "4"}
    assert warnings_of(caplog, **environment) == [
        ("variable without effect", {"variable": "DYN_ROUTER_EVENT_THREADS"}),
        ("variable without effect", {"variable": "DYN_SHARED_CACHE_TYPE"}),
    ]
