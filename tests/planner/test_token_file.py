"""The token of requests is read on a thread that nothing else waits for."""

import asyncio
from pathlib import Path

import pytest

from select_service.planner.planner_http import (
    RequestFailed,
    make_token_file,
    read_request_token,
)
from tests.hung_mount import hung_mount


def test_a_token_is_read_anew(tmp_path: Path) -> None:
    async def run() -> None:
        file = make_token_file(str(tmp_path / "token"))
        for token in ("one", "two"):
            (tmp_path / "token").write_text(f"{token}\n")
            assert await read_request_token(file, 5.0) == token
        await file.close()

    asyncio.run(run())


def test_a_file_system_that_hangs_fails_requests_in_bounded_time(tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()

    async def run() -> None:
        file = make_token_file(str(tmp_path / "mount" / "token"))
        with hung_mount(tmp_path / "mount"):
            for _ in range(12):
                with pytest.raises(
                    RequestFailed, match=r"token: file system did not answer within 0.05 s"
                ):
                    await read_request_token(file, 0.05)
        await file.close()

    asyncio.run(run())
