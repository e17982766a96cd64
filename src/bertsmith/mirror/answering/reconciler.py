"""The thread behind what answers: it opens students, folds what happened into the store, follows the
evidence, and says which versions a student is to be trained for.

    event loop, recorder → ledger → evidence → stage → open_students → event loop

A store that can't be written is tried again; what happened waits meanwhile. Versions that were merged
(`bertsmith mirror merge`) count as one: one student is trained on the calls of all of them, and answers all.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy.exc import DBAPIError

from bertsmith.errors import BertsmithError
from bertsmith.mirror.answering.judging import PromotionRules, is_training_due, judge_stage
from bertsmith.mirror.answering.ledger import REPLACED, VOIDED, Ledger, LedgerUpdate, compare_stored_call
from bertsmith.mirror.answering.open_students import (
    OpenStudents,
    StudentLike,
    StudentThread,
    VersionStudents,
    add_merged_versions,
)
from bertsmith.mirror.answering.stage_store import StageStore, VersionFacts
from bertsmith.mirror.answering.stages import (
    VOID,
    Evidence,
    EvidenceBatch,
    Stage,
    StudentComparison,
    StudentRecord,
)
from bertsmith.mirror.answering.training_process import Trainer
from bertsmith.mirror.settings import MirrorSettings
from bertsmith.mirror.student_file import require_student
from bertsmith.serving import LOG

AUDIT_PATIENCE = 900.0  # seconds after which an audit of which nothing is known has failed
StudentOpener = Callable[[Path], StudentLike]


class Pace(NamedTuple):
    """Seconds between two steps, between two looks at the stages, between two counts of the calls that might
    be trained on, and between two tries to open a student that can't be.
    """

    between_steps: float = 0.25
    between_looks: float = 1.0
    between_counts: float = 5.0
    between_openings: float = 30.0


def open_student(folder: Path) -> StudentLike:
    """Ours, which torch is imported for only now."""
    from bertsmith.mirror.student import MirrorStudent

    return MirrorStudent.open(folder)


class Reconciler:
    """`open_students` is what the event loop looks at, `ledger` what it writes to. `looks` counts how often
    all was folded, judged and looked at.
    """

    def __init__(
        self,
        settings: MirrorSettings,
        store: StageStore,
        trainer: Trainer,
        opening: StudentOpener = open_student,
        pace: Pace | None = None,
    ) -> None:
        self.settings, self.store, self.trainer, self.opening = settings, store, trainer, opening
        self.rules = PromotionRules(
            settings.auto, settings.canary_share, settings.shadow_calls, settings.canary_calls
        )
        self.open_students, self.ledger, self.pace, self.looks = OpenStudents(), Ledger(), pace or Pace(), 0
        self._open: dict[str, StudentThread | None] = {}
        self._students: dict[str, StudentRecord] = {}
        self._pending: LedgerUpdate | None = None
        self._looked = self._counted = 0.0
        self._problems: dict[str, str] = {}
        self._failed: dict[str, float] = {}  # students that could not be opened, and when
        self._found: tuple[Stage, StudentRecord] | None = None  # trained, and no candidate yet
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="reconciler", daemon=True)

    def start(self) -> None:
        """Looks once, so that what answers does so from the first call on, and begins the thread."""
        self._guarded(self._look)
        self._thread.start()

    def follow(self) -> None:
        """All that is due by now, whatever the pace: for whoever wants the same in every run, and has given
        the thread a pace at which it sleeps. Raises what the store raises.
        """
        self._fold()
        self._expire_audits()
        self._train()
        self._judge()
        self._look()

    def close(self, seconds: float) -> None:
        """Folds what is there, ends the training and the students."""
        self._ending.set()
        self._thread.join(seconds)
        self._guarded(self._fold)
        self._guarded(self.trainer.close)
        for each in self._open.values():
            if each is not None:
                each.close()

    def _work(self) -> None:
        self._guarded(self._compare_answered)
        while not self._ending.wait(self.pace.between_steps):
            self._guarded(self._fold)
            now = time.monotonic()
            if now - self._counted >= self.pace.between_counts:
                self._guarded(self._expire_audits)
                self._guarded(self._train)
                self._counted = now
            if now - self._looked >= self.pace.between_looks:
                self._guarded(self._judge)
                self._guarded(self._look)
                self._looked = now
                self.looks += 1

    def _guarded(self, step: Callable[[], None]) -> None:
        """No fault here may end the thread, keep another step from being made, or reach a call. What an error
        says may be a text of a call: its type alone is logged.
        """
        name = step.__name__.strip("_")
        try:
            step()
        except (DBAPIError, OSError) as error:
            self._say(name, f"{type(error).__name__}: the store is tried again")
        except Exception as error:
            self._say(name, type(error).__name__)
        else:
            self._say(name, "")

    def _say(self, name: str, problem: str) -> None:
        """Once a problem."""
        if problem and problem != self._problems.get(name):
            LOG.error("the mirror's reconciler: %s: %s", name, problem)
        self._problems[name] = problem

    def _fold(self) -> None:
        """One student after the other: what is in the store isn't folded again, and what can't be folded at
        all keeps nobody else's evidence out.
        """
        folded = self._pending = self._pending or self.ledger.fold(self.open_students)
        for number in list(folded.batches):
            if (student := self._students.get(number)) is not None:
                fold = partial(self.store.fold, student, folded.batches[number])
                self._for_one(number, fold)
            del folded.batches[number]
        self.store.tally(folded.tallies)
        self._pending = None

    def _judge(self) -> None:
        """Of two replicas that see the same, one changes the stage."""
        changed = self.store.changed_stages().values()
        stages = [each for each in changed if each.student or each.candidate]
        if not stages:
            return
        evidence = self.store.evidence()
        for stage in stages:
            self._for_one(stage.version, partial(self._follow, stage, evidence))

    def _follow(self, stage: Stage, evidence: Mapping[str, Evidence]) -> None:
        found = judge_stage(stage, evidence, self.rules)
        if found is not None and self.store.change(stage, found[0], "evidence", found[1]):
            after, why = found
            LOG.warning("version %s: %s → %s; %s", stage.version, stage.mode, after.mode, why)

    def _for_one(self, name: str, work: Callable[[], object]) -> None:
        """A fault in what is done for one student or version is no other's; the store's is everybody's."""
        try:
            work()
        except (DBAPIError, OSError):
            raise
        except Exception as error:
            self._say(name, type(error).__name__)
        else:
            self._say(name, "")

    def _look(self) -> None:
        """At the stages, as anybody may have left them."""
        changed = self.store.changed_stages()
        stages = {version: each for version, each in changed.items() if each.student or each.candidate}
        if not stages and not self.open_students.by_version:
            return
        self._students = self.store.students()
        wanted = {each for stage in stages.values() for each in (stage.student, stage.candidate) if each}
        for number in wanted:
            if self._open.get(number) is None:
                failed = self._failed.get(number)
                if failed is None or time.monotonic() - failed >= self.pace.between_openings:
                    self._open[number] = self._opened(number)
        students = add_merged_versions(
            {
                version: VersionStudents(
                    stage, self._open.get(stage.student), self._open.get(stage.candidate)
                )
                for version, stage in stages.items()
            }
        )
        # Merged ones too: of the version that a student was trained for, all calls may be deleted by now.
        facts = self.store.versions(version for version, each in students.items() if each.stage.answers)
        answering: dict[str, list[VersionFacts]] = {}
        for version, known in facts.items():
            answering.setdefault(students[version].stage.site, []).append(known)
        self.open_students = OpenStudents(students, answering)
        for number in self._open.keys() - wanted:
            if (old := self._open.pop(number)) is not None:
                old.close()

    def _opened(self, number: str) -> StudentThread | None:
        """None where it can't be: the LLM answers, `mirror check` says so, and it is tried again."""
        student = self._students.get(number)
        try:
            if student is None:
                raise FileNotFoundError("the store doesn't know it")
            folder = Path(student.folder)
            require_student(folder, number)
            found = StudentThread(number, lambda: self.opening(folder))
        except Exception as error:  # whatever is wrong with one is not the others'
            if number not in self._failed:
                said = error if isinstance(error, BertsmithError | OSError) else type(error).__name__
                LOG.error("student %s can't be opened: %s", number, said)
            self._failed[number] = time.monotonic()
            return None
        self._failed.pop(number, None)
        return found

    def _compare_answered(self) -> None:
        """Audits that a mirror left which was killed once the LLM's answer was stored."""
        self._compare_again(self.store.answered_audits())

    def _compare_again(self, audits: Sequence[Any]) -> set[str]:
        """Those of these audits (rows) whose call is stored and whose student is open, or has been replaced;
        gives their ids. Each is settled once, whoever else does so too.
        """
        calls, done = self.store.store.calls_named(each.id for each in audits), set[str]()
        for row in audits:
            call, student = calls.get(row.id), self._students.get(row.student)
            if call is None or student is None:
                continue
            if (opened := self._open.get(row.student)) is not None:
                found = compare_stored_call(row, call, opened)
            elif row.student not in self._open:  # no stage names it
                found = StudentComparison(True, row.probability, row.least, row.id, VOID)
                self.store.tally({(row.version, "", VOIDED + REPLACED): (1, 0.0)})
            else:
                continue
            self.store.fold(student, EvidenceBatch([found]))
            done.add(row.id)
        return done

    def _expire_audits(self) -> None:
        """What was drawn by a mirror that was killed, and can't be compared, counts as a disagreement."""
        late = self.store.unsettled(time.time() - AUDIT_PATIENCE)
        done = self._compare_again(late)
        for row in late:
            if row.id not in done and (student := self._students.get(row.student)) is not None:
                failed = StudentComparison(True, row.probability, row.least, row.id, "failed")
                self.store.fold(student, EvidenceBatch([failed]))

    def _train(self) -> None:
        if self._found is None:
            self._found = self.trainer.poll()
        if self._found is not None:
            stage, student = self._found
            why, is_done = "a student is trained and proven on calibration calls", False
            while not is_done:  # somebody else may change the stage meanwhile
                now = self.store.stages().get(stage.version, stage)
                is_done = self.store.change(now, replace(now, candidate=student.id), "evidence", why)
            self._found = None
        if not self.settings.auto or self.trainer.is_busy:
            return
        self._found = self.trainer.adopt(self.store.stages(), self.store.trainings())
        if self._found is not None:
            return
        due = find_due_trainings(self.store, self.open_students, self.settings.train_after)
        for stage, calls in due:
            if self.trainer.begin(stage, calls):
                return


def find_due_trainings(
    store: StageStore, open_students: OpenStudents, train_after: int
) -> Iterator[tuple[Stage, int]]:
    """The stages that a training is to be begun for, each with how many calls there are."""
    counts, into = store.call_counts(train_after), store.merged()
    groups: dict[str, list[str]] = {}
    for version in counts:
        groups.setdefault(into.get(version, version), []).append(version)
    enough = {
        target: some for target, some in groups.items() if sum(counts[each] for each in some) >= train_after
    }
    if not enough:
        return
    stages, trainings, evidence = store.stages(), store.trainings(), store.evidence()
    for target, some in enough.items():
        group = {target, *some, *(version for version, of in into.items() if of == target)}
        known = [stages[each] for each in group if each in stages]
        begun = [trainings[each] for each in group if each in trainings]
        if any(each.until > time.time() for each in begun):
            continue
        last = max(begun, key=lambda each: each.began, default=None)
        began = 0.0 if last is None else last.began
        new = {each: counts[each] if last is None else store.calls_since(each, began) for each in some}
        # Of the version that all are answered by, the calls may be deleted. Another's student may answer them
        # that was trained on both, though nobody merged them here.
        answering = {open_students.stage_version(each) for each in some} & group
        stage = _choose_trained_stage([stages[each] for each in answering if each in stages], trainings, new)
        if stage is None:
            continue
        is_answered = any(each.student for each in known)
        was_dismissed = last is not None and not is_answered and any(each.changed > began for each in known)
        students = [evidence[each.student] for each in known if each.student in evidence]
        is_urgent = was_dismissed or any(each.has_drifted for each in students)
        before = 0 if last is None else last.calls
        if is_training_due(sum(new.values()), before, train_after, is_urgent=is_urgent):
            yield stage, sum(counts[version] for version in some)


def _choose_trained_stage(
    stages: list[Stage], trainings: dict[str, object], new: dict[str, int]
) -> Stage | None:
    """Which of them the student is to be of: the one that has a student already, or a training that may be
    gone on with; of several, the one with the most new calls.
    """
    return max(
        stages,
        key=lambda each: (
            bool(each.student),
            bool(each.candidate),
            each.version in trainings,
            new.get(each.version, 0),
            each.version,
        ),
        default=None,
    )
