"""Tests that the token of requests is read on a separate thread."""

import threading
from pathlib import Path

import pytest

from select_service.net.http_client.http_error import HttpError
from select_service.net.http_client.http_session import HttpRequest, HttpSession
from select_service.net.token_file import TokenFile
from tests.builders.hung_mount import hung_mount


async def test_a_token_is_read_anew(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "token")
    for token in ("one", "two"):
        (tmp_path / "token").write_text(f"{token}\n")
        assert await file.read_token(5.0) == token
    await file.close()


async def test_a_file_system_that_hangs_fails_requests_in_bounded_time(tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    path = tmp_path / "mount" / "token"
    request = HttpRequest("GET", "http://127.0.0.1:9/", token_file=path)
    async with HttpSession() as session:
        with hung_mount(tmp_path / "mount"):
            before = threading.active_count()
            for _ in range(20):
                with pytest.raises(
                    HttpError, match=r"token`: file system did not answer within 0.05 s"
                ):
                    await session.fetch_body(request, bytes_max=9, timeout_s=0.05)
            assert threading.active_count() <= before + 1
