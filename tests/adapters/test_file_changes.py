"""Files that hang hold up their own thread, and nobody else."""

import asyncio
import threading

import pytest

from select_service.adapters import peer_api_key
from select_service.adapters.http_error import HttpError
from select_service.adapters.peer_api_key import authorization_header, peer_key_file
from select_service.adapters.reload.file_watch import FollowedFiles
from select_service.base import file_thread
from select_service.base.file_thread import FileThread
from tests.hung_mount import hung_mount
from tests.polling import PATIENCE_S, eventually_on_loop


def test_files_that_do_not_answer_are_told_of_once_and_when_they_do(monkeypatch, caplog, tmp_path):
    caplog.set_level("INFO")
    monkeypatch.setattr(file_thread, "SLOW_FILE_S", 0.02)
    answers = threading.Event()

    async def scene():
        thread = FileThread("keys", [tmp_path])
        reading = asyncio.create_task(thread.run_on_thread(lambda: answers.wait(PATIENCE_S)))
        await eventually_on_loop(lambda: "not answering" in caplog.text)
        await asyncio.sleep(0.1)
        answers.set()
        assert await reading
        assert await thread.run_on_thread(lambda: 3) == 3
        thread.close_thread()

    asyncio.run(scene())
    told = [each.message for each in caplog.records if each.name == "select_service.files"]
    assert told == ["followed files not answering", "followed files answering again"]


def test_the_age_grows_while_files_hang(tmp_path):
    (tmp_path / "mount").mkdir()

    async def scene():
        files = FollowedFiles("keys", [tmp_path / "mount" / "keys.toml"], 0.01)

        async def follow():
            async for _ in files.watch_changes():
                pass

        following = asyncio.create_task(follow())
        await eventually_on_loop(lambda: files._last_check_at > 0 and files.age_s() < 0.1)
        with hung_mount(tmp_path / "mount"):
            await eventually_on_loop(lambda: files.age_s() > 0.5)
            following.cancel()
            await asyncio.wait([following])
            files.close()

    asyncio.run(scene())


def test_a_key_for_peers_that_hangs_fails_every_request_in_bounded_time(tmp_path, monkeypatch):
    monkeypatch.setattr(peer_api_key, "READ_S", 0.05)
    (tmp_path / "mount").mkdir()

    async def scene():
        key = peer_key_file(tmp_path / "mount" / "key")
        with hung_mount(tmp_path / "mount"):
            before = threading.active_count()
            for _ in range(20):
                with pytest.raises(HttpError, match=r"no answer from .*key within 0.05 s"):
                    await authorization_header(key)
            assert threading.active_count() <= before + 1
        await key.close()

    asyncio.run(scene())
