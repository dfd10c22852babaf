"""Tests of the two forms of log lines and the fields; no value can forge a line."""

import io
import logging
import re

import msgspec
import pytest

from select_service.base import log_format as logs

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture
def restored_logging():
    """Restore the loggers of the process afterwards."""
    names = ("", "select_service", "indexer", "uvicorn")
    levels = {name: logging.getLogger(name).level for name in names}
    yield
    logging.captureWarnings(False)
    root = logging.getLogger()
    for handler in [h for h in root.handlers if h.get_name() == "select_service"]:
        root.removeHandler(handler)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def lines(restored_logging):
    """Return a function that configures logging and returns a reader of the written lines."""
    stream = io.StringIO()

    def configured(level="info", form="text"):
        logs.configure_logging(level, form, stream)
        return lambda: stream.getvalue().splitlines()

    return configured


def test_a_text_line_has_time_level_logger_message_and_fields(lines):
    written = lines()
    fields = {"worker_id": 2**64 - 1, "tenant_id": "default", "reasons": ["a b"], "gone": None}
    logging.getLogger("select_service.server.lifecycle").info(
        "worker registered", extra={"fields": fields}
    )
    (line,) = written()
    assert re.fullmatch(
        TIME
        + " INFO select_service.server.lifecycle worker registered worker_id=18446744073709551615 "
        r'tenant_id=default reasons=\["a b"\] gone=null',
        line,
    )


def test_a_json_line_is_one_object_with_the_fields_at_its_top(lines):
    written = lines(form="json")
    fields = {"reservation_id": "r1", "traceparent": "00-ab-cd-01", "candidates": [{"cost": 1.5}]}
    logging.getLogger("select_service.decisions").warning("decision", extra={"fields": fields})
    (line,) = written()
    body = msgspec.json.decode(line)
    assert re.fullmatch(TIME, body.pop("time"))
    assert body == {
        "level": "WARNING",
        "logger": "select_service.decisions",
        "message": "decision",
        **fields,
    }


def test_arguments_of_the_message_are_filled_in(lines):
    written = lines()
    logging.getLogger("indexer.ingest").warning("gap: worker_id=%d dp_rank=%d", 7, 0)
    assert written()[0].endswith("WARNING indexer.ingest gap: worker_id=7 dp_rank=0")


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "evil", ["a\nb", "a\r\nb", "\x1b[2Jx", "\x9b2Jx", "a\u2028b", "\x00", "\x7f"]
)
def test_no_value_starts_a_line_or_sends_control_codes(lines, form, evil):
    written = lines(form=form)
    log = logging.getLogger("select_service.server.lifecycle")
    log.info(evil, extra={"fields": {"id": evil, evil: [evil, {evil: evil}]}})
    (line,) = written()
    assert line.isprintable()


def test_an_escaped_json_value_reads_back_as_it_was(lines):
    written = lines(form="json")
    evil = "a\n\x1b\x9b\u2028\u00e9"
    logging.getLogger("select_service.server.lifecycle").info("x", extra={"fields": {"id": evil}})
    assert msgspec.json.decode(written()[0])["id"] == evil


def test_a_quoted_text_value_cannot_pretend_to_be_a_second_field(lines):
    written = lines()
    fields = {"id": 'r1 worker_id=9 "'}
    logging.getLogger("select_service.server.lifecycle").info("x", extra={"fields": fields})
    assert written()[0].endswith(r'x id="r1 worker_id=9 \""')


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "odd", [2**70, object(), {1.5: 2**70}, "\ud800", {(1, 2): 3}, {1, 2}, float("nan")]
)
def test_a_value_without_a_json_form_is_still_logged(lines, form, odd):
    written = lines(form=form)
    logging.getLogger("select_service.server.lifecycle").info("x", extra={"fields": {"odd": odd}})
    (line,) = written()
    assert "odd" in line


def test_a_field_cannot_replace_the_level_or_the_message(lines):
    written = lines(form="json")
    fields = {"level": "fake", "message": "fake"}
    logging.getLogger("select_service.server.lifecycle").info("true", extra={"fields": fields})
    body = msgspec.json.decode(written()[0])
    assert (body["level"], body["message"]) == ("INFO", "true")
    assert (body["level_"], body["message_"]) == ("fake", "fake")


def _log_a_failure():
    try:
        raise ValueError("bad\n2026-01-01T00:00:00.000Z INFO select_service forged")
    except ValueError:
        logging.getLogger("select_service.server.lifecycle").exception("request failed")


def test_a_traceback_follows_on_indented_lines(lines):
    written = lines()
    _log_a_failure()
    first, *rest = written()
    assert first.endswith("ERROR select_service.server.lifecycle request failed")
    assert rest
    assert all(line.startswith("    ") for line in rest)


def test_a_traceback_is_one_json_field(lines):
    written = lines(form="json")
    _log_a_failure()
    (line,) = written()
    assert "ValueError: bad\n2026" in msgspec.json.decode(line)["exception"]


def test_the_level_applies_to_our_packages_and_others_only_warn(lines):
    written = lines(level="debug")
    logging.getLogger("select_service.x").debug("ours")
    logging.getLogger("indexer.x").debug("ours too")
    logging.getLogger("numba.core").info("theirs")
    logging.getLogger("numba.core").warning("their warning")
    assert [line.split(" ", 3)[3] for line in written()] == ["ours", "ours too", "their warning"]


def test_lines_below_the_level_are_not_written(lines):
    written = lines(level="warning")
    logging.getLogger("select_service.x").info("no")
    assert written() == []


def test_uvicorn_speaks_through_the_same_lines_and_not_twice(lines):
    logging.getLogger("uvicorn.error").addHandler(logging.StreamHandler())
    logging.getLogger("uvicorn.error").setLevel(logging.INFO)
    written = lines(form="json")
    logging.getLogger("uvicorn.error").info("Started server process")
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    (line,) = written()
    assert msgspec.json.decode(line)["logger"] == "uvicorn.error"


def test_configuring_again_replaces_the_old_form(lines):
    lines(form="json")
    written = lines(form="text")
    logging.getLogger("select_service.x").info("once")
    assert len(written()) == 1
    assert not written()[0].startswith("{")
