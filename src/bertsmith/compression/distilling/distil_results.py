"""What a distillation brought: the student beside its teacher, and beside itself without one.

out/results.json            every figure
out/predictions/dev.jsonl   what the student says of each row, with the right answer
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bertsmith.compression.distilling.cost import Saving
from bertsmith.files import write_json
from bertsmith.reporting import formatting
from bertsmith.tasks.task import Metrics
from bertsmith.text.files.jsonl import write_jsonl
from bertsmith.training.finetuning.results import Results
from bertsmith.training.log import json_value


@dataclass(frozen=True)
class DistilResults:
    """`student`: its figures beside baselines. By evaluation (dev, test): the `teacher`'s figures, those of
    the student trained `alone` on the labels, and the `agreement`, the student's main metric with the
    teacher's answers for labels. Where nobody labelled anything, dev's labels are the teacher's.
    """

    student: Results
    teacher: dict[str, Metrics]
    alone: dict[str, Metrics]
    agreement: dict[str, float]
    saving: Saving
    texts: int
    labels_of_teacher: bool

    @property
    def metric(self) -> str:
        return self.student.task.main_metric

    def share_kept(self, name: str) -> float | None:
        """The student's score as a share of the teacher's, in the evaluation of this name."""
        theirs = self.teacher.get(name, {}).get(self.metric)
        return self.student.evaluations[name].model[self.metric] / theirs if theirs else None

    def beside(self, name: str) -> dict[str, Metrics]:
        """By what tables call them, the figures of an evaluation: the student's, the teacher's, those without
        a teacher, and the baselines'.
        """
        evaluation = self.student.evaluations[name]
        found = {"the student": evaluation.model, "its teacher": self.teacher.get(name)}
        found["without the teacher"] = self.alone.get(name)
        return {who: figures for who, figures in found.items() if figures} | evaluation.baselines

    def sentences(self) -> list[str]:
        """What was kept, and what is saved, in words."""
        found, saving = [], self.saving
        for name in self.student.evaluations:
            kept, agreement = self.share_kept(name), self.agreement.get(name)
            parts = [] if kept is None else [f"{kept:.1%} of the teacher's {self.metric}"]
            parts += [] if agreement is None else [f"agreement with it {agreement:.4f} ({self.metric})"]
            found += [f"{name}: {', '.join(parts)}"] if parts else []
        student, teacher = saving.student, saving.teacher
        if teacher is None:
            millis = f"{1e3 * student.seconds:.2f} ms, alone {1e3 * student.alone:.2f} ms"
            return [*found, f"parameters {student.parameters / 1e6:.1f} M, time of a text {millis}"]
        return [
            *found,
            f"parameters {student.parameters / 1e6:.1f} M of {teacher.parameters / 1e6:.1f} M, "
            f"{formatting.bytes(student.bytes)} of {formatting.bytes(teacher.bytes)}",
            f"time of a text {1e3 * student.seconds:.2f} ms of {1e3 * teacher.seconds:.2f} ms "
            f"({saving.share:.2f}); alone {1e3 * student.alone:.2f} ms of {1e3 * teacher.alone:.2f} ms "
            f"({saving.share_alone:.2f})",
        ]

    @property
    def warnings(self) -> list[str]:
        """Sentences on what to mistrust."""
        found = list(self.student.warnings)
        for name, alone in self.alone.items():
            ours, theirs = self.student.evaluations[name].model[self.metric], alone[self.metric]
            if theirs >= ours:
                found.append(
                    f"on {name} the same student without a teacher has {self.metric} {theirs:.4f}, with one "
                    f"{ours:.4f}: the teacher brings nothing here. More texts would help it most"
                )
        return found

    def record(self) -> dict[str, Any]:
        """results.json."""
        own = {
            "teacher": self.teacher,
            "without_teacher": self.alone,
            "agreement": self.agreement,
            "share_kept": {name: self.share_kept(name) for name in self.student.evaluations},
            "saving": {
                "teacher": self.saving.teacher._asdict() if self.saving.teacher else None,
                "student": self.saving.student._asdict(),
                "share_of_time": self.saving.share,
                "share_of_time_alone": self.saving.share_alone,
            },
            "texts": self.texts,
            "labels_of_teacher": self.labels_of_teacher,
            "warnings": self.warnings,
        }
        return cast(dict[str, Any], json_value(self.student.record() | own))


def write_distil_results(out: Path, results: DistilResults) -> None:
    """results.json and the predictions of each evaluation."""
    write_json(out / "results.json", results.record())
    (out / "predictions").mkdir(exist_ok=True)
    task = results.student.task
    for name, evaluation in results.student.evaluations.items():
        pairs = zip(evaluation.split.examples, evaluation.predictions, strict=True)
        write_jsonl((task.line(*pair) for pair in pairs), out / "predictions" / f"{name}.jsonl")
