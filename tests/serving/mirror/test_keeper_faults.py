"""What goes wrong with one student, or one step, is nobody else's matter, and is tried again."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from made_student import make_student, put_in_mode
from running_mirror import RunningMirror, running_mirror, wait_until
from scripted_upstream import Upstream
from test_stages import USUAL, WORDS, ask

from bertsmith.serving.mirror.answering.training_process import read_student


@pytest.fixture
def mirror(upstream: Upstream, tmp_path: Path) -> Iterator[RunningMirror]:
    with running_mirror(tmp_path, upstream.url, audit_share=1.0, seed=1) as found:
        yield found


def test_a_folder_that_holds_another_student_by_now_is_not_opened(
    mirror: RunningMirror, tmp_path: Path
) -> None:
    ask(mirror, "my card")
    call = mirror.calls()[-1]
    folder = make_student(tmp_path / "made", call, WORDS, USUAL)
    other = make_student(tmp_path / "other", call, WORDS, USUAL, created="later")
    student = read_student(folder, call.version)
    assert student is not None
    mirror.stages.add_student(replace(student, folder=str(other)))
    put_in_mode(mirror.stages, folder, call, "live")
    wait_until(lambda: mirror.app.keeper.panel.answers)
    assert ask(mirror, "a card").endswith(f"student={student.id}; reason=student-failed")
