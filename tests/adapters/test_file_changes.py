"""Tests of hanging files, which delay their own thread alone."""

import asyncio
import threading

from select_service.adapters.reload.file_watch import FollowedFiles
from select_service.base import file_thread
from select_service.base.file_thread import FileThread
from tests.builders.hung_mount import hung_mount
from tests.builders.polling import PATIENCE_S, eventually_on_loop


async def test_hanging_files_are_logged_once_and_when_they_answer(monkeypatch, caplog, tmp_path):
    caplog.set_level("INFO")
    monkeypatch.setattr(file_thread, "SLOW_FILE_S", 0.02)
    answers = threading.Event()
    thread = FileThread("keys", [tmp_path])
    reading = asyncio.create_task(thread.run_on_thread(lambda: answers.wait(PATIENCE_S)))
    await eventually_on_loop(lambda: "not answering" in caplog.text)
    await asyncio.sleep(0.1)
    answers.set()
    assert await reading
    assert await thread.run_on_thread(lambda: 3) == 3
    thread.close_thread()
    told = [each.message for each in caplog.records if each.name == "select_service.files"]
    assert told == ["followed files not answering", "followed files answering again"]


async def test_the_age_grows_while_files_hang(tmp_path):
    (tmp_path / "mount").mkdir()
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
