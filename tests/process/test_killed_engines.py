"""Tests of killed engines with states: no exact answer is wrong, and no bound is too low.

scripts/test_slow tests/process/test_killed_engines.py -s      # all scenes, prints the table
"""

import pytest

from tests.process.killed_engine_scenes import BOUND, EXACT, SCENES, KillScene, KillStage

pytestmark = pytest.mark.process

SHORT = [
    KillScene("between", True, "fewer", "runs"),
    KillScene("inside", True, "more", "snapshot"),
    KillScene("lost", True, "more", "late_peer"),
    KillScene("lost", False, "fewer", "runs"),
]


def play(scene, folder):
    stage = KillStage(scene, folder)
    stage.play()
    counts = stage.counts
    print(f"{scene!s:36}", *(f"{how} {kind} {n}" for (how, kind), n in sorted(counts.items())))
    wrong = {key: n for key, n in counts.items() if key[0] == EXACT and key[1] != "right"}
    assert (wrong, counts[BOUND, "under"]) == ({}, 0)
    assert stage.reused > 5_000
    if scene.has_replay:
        assert counts[EXACT, "right"] == counts.total()


@pytest.mark.parametrize("scene", SHORT, ids=str)
def test_no_exact_answer_is_wrong(scene, tmp_path):
    play(scene, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("scene", [scene for scene in SCENES if scene not in SHORT], ids=str)
def test_no_exact_answer_is_wrong_in_any_scene(scene, tmp_path):
    play(scene, tmp_path)
