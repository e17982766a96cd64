"""The mirror's background thread: it opens students, adds events to the evidence in the store, changes stages
by the evidence, and starts trainings.

    event loop, recorder → ledger → evidence → stage → open_students → event loop

A store that can't be written is tried again; events wait meanwhile. Merged versions (`bertsmith mirror
merge`) count as one: one student is trained on the calls of all of them, and answers all. Read
`Reconciler._work` first.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy.exc import DBAPIError

from bertsmith.errors import BertsmithError
from bertsmith.mirror.answering.judging import (
    PromotionRules,
    describe_training,
    is_training_due,
    judge_stage,
)
from bertsmith.mirror.answering.ledger import REPLACED, VOIDED, Ledger, LedgerUpdate, compare_stored_call
from bertsmith.mirror.answering.open_students import (
    OpenStudents,
    StudentLike,
    StudentThread,
    VersionStudents,
    add_merged_versions,
)
from bertsmith.mirror.answering.replays import (
    CALLS_BETWEEN,
    ReplayCount,
    ReplayQueue,
    ReplayStore,
    draw_former_inputs,
    draw_inputs,
    weigh_changes,
)
from bertsmith.mirror.answering.stage_store import StageStore, VersionFacts, read_forecasts
from bertsmith.mirror.answering.stages import (
    LLM_CHANGED,
    RECORD,
    VOID,
    Evidence,
    EvidenceBatch,
    Stage,
    StudentComparison,
    StudentRecord,
    begin_anew,
)
from bertsmith.mirror.answering.training_process import Trainer
from bertsmith.mirror.call import AGAIN, Json
from bertsmith.mirror.settings import MirrorSettings
from bertsmith.mirror.student_file import read_student_file, require_student
from bertsmith.serving import LOG

AUDIT_PATIENCE = 900.0  # seconds after which an audit without a result has failed
StudentOpener = Callable[[Path], StudentLike]


class Pace(NamedTuple):
    """Seconds between two folds of events, between two readings of the stages, between two counts of the
    calls to train on, between two attempts to open a student that failed to open, and between two looks for a
    changed prompt or model.
    """

    between_steps: float = 0.25
    between_looks: float = 1.0
    between_counts: float = 5.0
    between_openings: float = 30.0
    between_plans: float = 20.0


def open_student(folder: Path) -> StudentLike:
    """Opens a student's folder. Imports torch, which a mirror without a student doesn't need."""
    from bertsmith.mirror.student import MirrorStudent

    return MirrorStudent.open(folder)


class Reconciler:
    """`open_students` and `replays` are what the event loop reads, `ledger` what it writes to. `looks` counts
    how often the stages were judged and read.
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
        self.replays, self._replays = ReplayQueue(), ReplayStore(store.store)
        self._calls = Counter[str]()  # of a version, since an input was last chosen to be asked again
        self._contradictions: dict[str, list[tuple[float, Json]]] = {}  # of these calls
        self._weighed: dict[str, ReplayCount] = {}
        self._open: dict[str, StudentThread | None] = {}
        self._students: dict[str, StudentRecord] = {}
        self._pending: LedgerUpdate | None = None
        self._looked = self._counted = self._planned = 0.0
        self._problems: dict[str, str] = {}  # the last logged problem of each step
        self._failed: dict[str, float] = {}  # students that could not be opened, and when
        self._new_student: tuple[Stage, StudentRecord] | None = None  # trained, not yet a candidate
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="reconciler", daemon=True)

    def start(self) -> None:
        """Opens the students, so that they answer from the first call on, and starts the thread."""
        self._guarded(self._look)
        self._thread.start()

    def follow(self) -> None:
        """Runs every step once, whatever the pace: for a deterministic replay, whose thread sleeps. Raises
        what the store raises.
        """
        self._fold()
        self._expire_audits()
        self._train()
        self._plan_replays()
        self._watch_answers()
        self._judge()
        self._look()
        self._prepare_replays()

    def close(self, seconds: float) -> None:
        """Stops the thread within `seconds`, folds the last events, ends the training and closes the
        students.
        """
        self._ending.set()
        self._thread.join(seconds)
        self._guarded(self._fold)
        self._guarded(self.trainer.close)
        for student in self._open.values():
            if student is not None:
                student.close()

    def _work(self) -> None:
        self._guarded(self._compare_answered)
        while not self._ending.wait(self.pace.between_steps):
            self._guarded(self._fold)
            now = time.monotonic()
            if now - self._counted >= self.pace.between_counts:
                self._guarded(self._expire_audits)
                self._guarded(self._train)
                self._counted = now
            if now - self._planned >= self.pace.between_plans:
                self._guarded(self._plan_replays)
                self._planned = now
            if now - self._looked >= self.pace.between_looks:
                self._guarded(self._watch_answers)
                self._guarded(self._judge)
                self._guarded(self._look)
                self._guarded(self._prepare_replays)
                self._looked = now
                self.looks += 1

    def _guarded(self, step: Callable[[], None]) -> None:
        """Runs a step so that no fault ends the thread, prevents another step or reaches a call. An error's
        message may hold a call's text, so only its type is logged.
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
        """Logs a step's problem unless it was the last one logged; an empty `problem` clears it."""
        if problem and problem != self._problems.get(name):
            LOG.error("the mirror's reconciler: %s: %s", name, problem)
        self._problems[name] = problem

    def _fold(self) -> None:
        """Adds the events to the store, student by student: evidence that is stored isn't added again, and
        evidence that can't be added doesn't hold back another student's.
        """
        folded = self._pending = self._pending or self.ledger.fold(self.open_students)
        for number in list(folded.batches):
            if (student := self._students.get(number)) is not None:
                fold = partial(self.store.fold, student, folded.batches[number])
                self._for_one(number, fold)
            del folded.batches[number]
        self.store.tally(folded.tallies)
        self._calls += folded.calls
        for version, contradictions in folded.contradictions.items():
            self._contradictions.setdefault(version, []).extend(contradictions)
        self._pending = None

    def _watch_answers(self) -> None:
        """Has recorded inputs asked again where a student answers, to tell whether the LLM has changed."""
        if not (self.settings.auto and self.settings.replay_calls):
            return
        for version, entry in self.open_students.by_version.items():
            stage, record = entry.stage, self._students.get(entry.stage.student)
            if version == stage.version and stage.student_answers and entry.student and record:
                self._for_one(version, partial(self._watch_version, stage, entry.student, record.added))

    def _watch_version(self, stage: Stage, student: StudentThread, added: float) -> None:
        """Chooses what the LLM of a stage's version is asked again, among the calls recorded before its
        student was `added`, and dismisses the student where the LLM has changed.
        """
        version, shape = stage.version, student.student.file.shape
        if self._calls[version] >= CALLS_BETWEEN:
            self._calls[version] = 0
            contradictions = self._contradictions.pop(version, [])
            _, answer = max(contradictions, key=lambda pair: pair[0], default=(0.0, None))
            chosen = [] if answer is None else self._replays.draw(version, 1, added, answer)
            calls = chosen or self._replays.draw(version, 1, added)
            self._replays.plan(version, calls, AGAIN, is_drawn=not chosen)
        count = self._replays.counts().get(version)
        if count is None or count == self._weighed.get(version):
            return
        evidence = weigh_changes(
            self._replays.repeated_answers(version, added),
            lambda one, other: student.differs(shape.read(one.completion.value), other.completion.value),
        )
        if evidence.has_changed:
            why = f"{LLM_CHANGED}: {evidence.describe()}"
            compared = self.store.evidence().get(stage.student)
            if compared is None or not compared.has_drifted:  # the next student is proven by them
                most = self.settings.replay_calls
                inputs = draw_inputs(self.store, version, version, most)
                occasion = stage.revision
                self._replays.plan(version, inputs.drawn, chosen=inputs.chosen, occasion=occasion)
            if self.store.change(stage, begin_anew(stage), "evidence", why):
                LOG.warning("version %s: %s → record; %s", version, stage.mode, why)
            return
        self._replays.plan(version, evidence.doubtful, AGAIN, is_next=True)
        wanted = evidence.wanted - (count.planned - count.asked)
        if wanted > 0:
            self._replays.plan(version, self._replays.draw(version, wanted, added), AGAIN)
        self._weighed[version] = count

    def _judge(self) -> None:
        """Changes the stages by the evidence. Of two replicas that decide the same, one makes the change."""
        changed = self.store.changed_stages().values()
        stages = [stage for stage in changed if stage.student or stage.candidate]
        if not stages:
            return
        evidence = self.store.evidence()
        for stage in stages:
            self._for_one(stage.version, partial(self._follow, stage, evidence))

    def _follow(self, stage: Stage, evidence: Mapping[str, Evidence]) -> None:
        replayed = 0
        if stage.mode == RECORD and (student := self.store.students().get(stage.student or stage.candidate)):
            with suppress(BertsmithError):  # its folder is gone, which `mirror check` reports
                replayed = read_student_file(Path(student.folder)).calibration.replayed
        decision = judge_stage(stage, evidence, self.rules, replayed)
        if decision is not None and self.store.change(stage, decision[0], "evidence", decision[1]):
            after, why = decision
            LOG.warning("version %s: %s → %s; %s", stage.version, stage.mode, after.mode, why)

    def _for_one(self, name: str, work: Callable[[], object]) -> None:
        """Runs work for one student or version, so that its fault affects no other; the store's faults are
        raised.
        """
        try:
            work()
        except (DBAPIError, OSError):
            raise
        except Exception as error:
            self._say(name, type(error).__name__)
        else:
            self._say(name, "")

    def _look(self) -> None:
        """Reads the stages, opens the students that they name, and closes the others."""
        changed = self.store.changed_stages()
        stages = {version: stage for version, stage in changed.items() if stage.student or stage.candidate}
        if not stages and not self.open_students.by_version:
            return
        self._students = self.store.students()
        named = {number for stage in stages.values() for number in (stage.student, stage.candidate) if number}
        for number in named:
            if self._open.get(number) is None:
                failed = self._failed.get(number)
                if failed is None or time.monotonic() - failed >= self.pace.between_openings:
                    self._open[number] = self._open_thread(number)
        self._follow_proofs()
        students = add_merged_versions(
            {
                version: VersionStudents(
                    stage, self._open.get(stage.student), self._open.get(stage.candidate)
                )
                for version, stage in stages.items()
            }
        )
        # Merged ones too: of the version that a student was trained for, all calls may be deleted by now.
        facts = self.store.versions(
            version for version, entry in students.items() if entry.stage.student_answers
        )
        answering: dict[str, list[VersionFacts]] = {}
        for version, version_facts in facts.items():
            answering.setdefault(students[version].stage.site, []).append(version_facts)
        self.open_students = OpenStudents(students, answering)
        for number in self._open.keys() - named:
            if (old := self._open.pop(number)) is not None:
                old.close()

    def _plan_replays(self) -> None:
        """Plans to ask recorded inputs again where the prompt or the model has changed."""
        if not (self.settings.auto and self.settings.replay_calls and self.open_students.by_version):
            return
        for version, inputs in draw_former_inputs(self.store, self.settings.replay_calls).items():
            if planned := self._replays.plan(version, inputs.drawn, chosen=inputs.chosen, is_first=True):
                LOG.info("version %s: %d recorded inputs are asked again beside its calls", version, planned)

    def _prepare_replays(self) -> None:
        """Reads the next inputs that are to be asked again."""
        students = self.open_students.by_version.items()
        answered = {version for version, entry in students if entry.stage.student_answers}
        self.replays.fill(self._replays, answered)

    def _follow_proofs(self) -> None:
        """Tells the students whose proof grows in shadow from which confidence on they may answer by now."""
        for number, threshold in self.store.proven_thresholds(self._open).items():
            if (opened := self._open.get(number)) is None or opened.student.proven_threshold == threshold:
                continue
            opened.student.proven_threshold = threshold
            LOG.warning("student %s may answer from confidence %s on", number, threshold)

    def _open_thread(self, number: str) -> StudentThread | None:
        """None where the student can't be opened: the LLM answers, `mirror check` reports it, and opening is
        tried again later.
        """
        student = self._students.get(number)
        try:
            if student is None:
                raise FileNotFoundError("the store doesn't know it")
            folder = Path(student.folder)
            require_student(folder, number)
            thread = StudentThread(number, lambda: self.opening(folder))
        except Exception as error:  # whatever is wrong with one is not the others'
            if number not in self._failed:
                reason = error if isinstance(error, BertsmithError | OSError) else type(error).__name__
                LOG.error("student %s can't be opened: %s", number, reason)
            self._failed[number] = time.monotonic()
            return None
        self._failed.pop(number, None)
        return thread

    def _compare_answered(self) -> None:
        """Compares the audits that a killed mirror left open although the LLM's answer was stored."""
        self._compare_again(self.store.answered_audits())

    def _compare_again(self, audits: Sequence[Any]) -> set[str]:
        """Settles the audits (rows) whose call is stored and whose student is open or replaced, and returns
        their ids. An audit counts once, even if another process settles it too.
        """
        calls, done = self.store.store.calls_named(row.id for row in audits), set[str]()
        for row in audits:
            call, student = calls.get(row.id), self._students.get(row.student)
            if call is None or student is None:
                continue
            if (opened := self._open.get(row.student)) is not None:
                comparison = compare_stored_call(row, call, opened)
            elif row.student not in self._open:  # no stage names it
                comparison = StudentComparison(True, row.probability, row.least, row.id, VOID)
                self.store.tally({(row.version, "", VOIDED + REPLACED): (1, 0.0)})
            else:
                continue
            self.store.fold(student, EvidenceBatch([comparison]))
            done.add(row.id)
        return done

    def _expire_audits(self) -> None:
        """Settles audits of a killed mirror: one that can't be compared counts as a disagreement."""
        late = self.store.unsettled(time.time() - AUDIT_PATIENCE)
        done = self._compare_again(late)
        for row in late:
            if row.id not in done and (student := self._students.get(row.student)) is not None:
                failed = StudentComparison(True, row.probability, row.least, row.id, "failed")
                self.store.fold(student, EvidenceBatch([failed]))

    def _train(self) -> None:
        if self._new_student is None:
            self._new_student = self.trainer.poll()
        if self._new_student is not None:
            stage, student = self._new_student
            why, is_done = describe_training(is_proven=student.plan is None), False
            while not is_done:  # somebody else may change the stage meanwhile
                now = self.store.stages().get(stage.version, stage)
                is_done = self.store.change(now, replace(now, candidate=student.id), "evidence", why)
            self._new_student = None
        if not self.settings.auto or self.trainer.is_busy:
            return
        self._new_student = self.trainer.adopt(self.store.stages(), self.store.trainings())
        if self._new_student is not None:
            return
        due = find_due_trainings(self.store, self.open_students, self.settings.train_after)
        for stage, calls in due:
            if self.trainer.begin(stage, calls):
                return
        for stage, calls in find_due_forecasts(self.store, self.settings.forecast_after):
            if self.trainer.begin_forecast(stage, calls):
                return


def find_due_forecasts(store: StageStore, forecast_after: int) -> Iterator[tuple[Stage, int]]:
    """Yields the versions that a forecast should be made for, each with its number of calls: of those without
    a student and a training that have `forecast_after` calls (0: none), and each time they have twice as
    many.
    """
    counts = store.call_counts(forecast_after) if forecast_after else {}
    if not counts:
        return
    stages, known, trained = store.stages(), read_forecasts(store.store), store.trainings()
    for version, calls in counts.items():
        stage = stages.get(version)
        if stage is None or stage.student or stage.candidate or version in trained:
            continue
        if calls >= max(forecast_after, 2 * known.get(version, {"calls": 0})["calls"]):
            yield stage, calls


def find_due_trainings(
    store: StageStore, open_students: OpenStudents, train_after: int
) -> Iterator[tuple[Stage, int]]:
    """Yields the stages that a training should start for, each with its number of calls. A version of a site
    of which another one has been learned, as after a change of the prompt or the model, takes half of
    `train_after`: the answers before are learned from too. While recorded inputs are asked again, which are
    to prove the student, it waits for up to twice `train_after`.
    """
    fewest = math.ceil(train_after / 2)
    counts, into = store.call_counts(fewest), store.merged()
    groups: dict[str, list[str]] = {}
    for version in counts:
        groups.setdefault(into.get(version, version), []).append(version)
    enough = {
        target: versions
        for target, versions in groups.items()
        if sum(counts[version] for version in versions) >= fewest
    }
    if not enough:
        return
    stages, trainings, evidence = store.stages(), store.trainings(), store.evidence()
    changes, asked_again = store.llm_changes(), ReplayStore(store.store).counts()
    for target, versions in enough.items():
        group = {target, *versions, *(version for version, of in into.items() if of == target)}
        group_stages = [stages[version] for version in group if version in stages]
        earlier = [trainings[version] for version in group if version in trainings]
        if any(training.until > time.time() for training in earlier):
            continue
        last = max(earlier, key=lambda training: training.began, default=None)
        began = 0.0 if last is None else last.began
        changed = max((changes[version] for version in group if version in changes), default=0.0)
        since = max(began, changed)
        new = {
            version: counts[version] if last is None else store.calls_since(version, since)
            for version in versions
        }
        # The calls of the version whose student answers them all may be deleted. A student of another group
        # may answer these versions too, if it was trained on both although this store hasn't merged them.
        answering = {open_students.stage_version(version) for version in versions} & group
        answering_stages = [stages[version] for version in answering if version in stages]
        stage = _choose_trained_stage(answering_stages, trainings, new)
        if stage is None:
            continue
        is_answered = any(other.student for other in group_stages)
        has_changed = any(other.changed > began for other in group_stages)
        was_dismissed = last is not None and not is_answered and has_changed
        students = [evidence[other.student] for other in group_stages if other.student in evidence]
        before = 0 if last is None else last.calls
        if 0 < changed < began:  # of the calls that the last training had, those since the LLM has changed
            of_changed = sum(store.calls_since(version, changed) for version in versions)
            before = min(before, of_changed - sum(new.values()))
        sites = {stages[version].site for version in group if version in stages}
        follows = not before and any(
            training.calls and version in stages and stages[version].site in sites
            for version, training in trainings.items()
        )
        is_urgent = was_dismissed or follows or any(student.has_drifted for student in students)
        is_asking = any(version in asked_again and asked_again[version].is_open for version in versions)
        if is_urgent and is_asking and sum(new.values()) < 2 * train_after:
            continue
        if is_training_due(sum(new.values()), before, train_after, is_urgent=is_urgent):
            yield stage, sum(counts[version] for version in versions)


def _choose_trained_stage(
    stages: list[Stage], trainings: dict[str, object], new: dict[str, int]
) -> Stage | None:
    """The stage that the new student will belong to: one that has a student, else a candidate, else a
    training that can be resumed; among equals, the one with the most new calls.
    """
    return max(
        stages,
        key=lambda stage: (
            bool(stage.student),
            bool(stage.candidate),
            stage.version in trainings,
            new.get(stage.version, 0),
            stage.version,
        ),
        default=None,
    )
