"""Distils an encoder on raw text: teacher and corpus → student → training loop → losses.

out/recipe.toml              the resolved recipe        out/log.jsonl     the log; reports are made from it
out/data.json                hashes of teacher and text
out/tokens/                  the token store            out/checkpoints/  training state
out/projection.safetensors   (D, H) to fewer dimensions out/teacher/      cached vectors of the teacher
out/model/                   the student                out/report.html   the report
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bertsmith.compression.distilling.encoders.objective import EncoderDistillation
from bertsmith.compression.distilling.encoders.student import make_student_model, save_student
from bertsmith.compression.distilling.encoders.teacher import EncoderTeacher, VectorCache, learn_projection
from bertsmith.compression.distilling.encoders.teaching_plan import TeachingPlan
from bertsmith.compression.distilling.recipes import EncoderDistilRecipe
from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.data.store import TokenStore
from bertsmith.errors import CorpusError, ResourceError
from bertsmith.files import require_free_space
from bertsmith.model.bert import Bert
from bertsmith.tasks.pretraining.pretraining import start_at_frequencies
from bertsmith.training.inputs import note_unknown_tokens, open_stores
from bertsmith.training.log import RunLog
from bertsmith.training.loop import Loop
from bertsmith.training.observer import describe_run
from bertsmith.training.run import Run
from bertsmith.training.run_report import RunReport, environment, find_first_evaluation, write_report
from bertsmith.training.sharding import gather_tensors
from bertsmith.training.streams import require_masks

_CHECKPOINT_BYTES = 12  # a parameter: its float32 weight and its two moments


@dataclass(frozen=True)
class TrainedStudent:
    """A trained student: its weights, its losses on held-out text before the first step and after `steps`."""

    weights: dict[str, torch.Tensor]
    before: dict[str, float]
    metrics: dict[str, float]
    steps: int


@dataclass(frozen=True)
class EncoderDistiller:
    """The `Distiller` of an encoder or an embedding model, whose outputs are computed in each step. The
    tensors of `pooler` aren't trained and go into the saved model as they are.
    """

    run: Run[EncoderDistilRecipe]
    plan: TeachingPlan
    task: EncoderDistillation
    pooler: dict[str, torch.Tensor]
    hashes: dict[str, str]
    notes: tuple[str, ...]
    task_class: None = None

    @property
    def recipe(self) -> EncoderDistilRecipe:
        """The recipe as it was given; no settings are chosen for an encoder."""
        return self.run.recipe

    @classmethod
    def open(cls, run: Run[EncoderDistilRecipe]) -> "EncoderDistiller":
        """Reads the teacher, tokenises the corpus unless that was done, and makes the student.

        Raises RecipeError where the run folder belongs to another teacher or corpus, and CorpusError where
        the corpus has no document to train on.
        """
        recipe, out, machine = run.recipe, run.out, run.machine
        plan = TeachingPlan.open(recipe)
        tokenizer = plan.tokenizer
        teacher = plan.encoder()
        parameters = sum(parameter.numel() for parameter in teacher.parameters())
        required_bytes = ((recipe.checkpoint.keep + 1) * _CHECKPOINT_BYTES + 4) * parameters
        require_free_space(out, required_bytes, "The run's checkpoints and model")
        train, heldout = open_stores(recipe.corpus, tokenizer, out / "tokens", machine.ranks, run.console)
        if len(train) == 0:
            raise CorpusError(
                f"{train.path} holds no document. Build the corpus with a smaller held-out share."
            )
        notes = list(note_unknown_tokens(train, tokenizer))
        if not len(heldout):
            notes.append("nothing is measured: the held-out part of the corpus is empty")
        hashes = {"teacher": plan.sha256, "corpus": train.corpus_sha256}
        run.record_data(hashes)
        task, pooler, student_notes = _make_objective(run, plan, teacher, train, heldout)
        return cls(run, plan, task, pooler, hashes, (*notes, *student_notes))

    def train(self) -> TrainedStudent:
        """Trains the student to the last step, from the last checkpoint where the run is resumed."""
        run, task = self.run, self.task
        facts = describe_run(task.model, self.plan.config, Path(run.recipe.corpus).name, run.machine)
        facts["teacher"] = f"teacher {Path(run.recipe.teacher).name}"
        observer = run.observer("Distillation", facts, run.recipe)
        loop = Loop(task, run.recipe, run.machine, run.out, observer)
        notes = [*self.plan.checkpoint.notes, *self.notes, *(loop.resume() if run.resume else [])]
        with observer.open(loop.progress.step, notes):
            if loop.is_new:
                before = loop.evaluate()
            else:  # a resumed run measured this before its first step
                logged = find_first_evaluation(RunLog.read(run.out)) or {}
                before = {name: logged[name] for name in logged if name == "loss" or name.endswith("_loss")}
            loop.run()
            metrics = loop.evaluate()
            observer.record("end", loop.progress.step, elapsed=loop.progress.elapsed, reason="finished")
        weights = gather_tensors(task.model.state_dict(), keep=run.is_first)
        return TrainedStudent(weights, before, metrics, loop.progress.step)

    def save(self, student: TrainedStudent, folder: Path) -> None:
        """Writes the student with its provenance: teacher, losses, recipe, metrics and the corpus' hash."""
        plan = self.plan
        provenance = {
            "steps": student.steps,
            "metrics": student.metrics,
            "teacher": {"name": self.recipe.teacher, "sha256": plan.sha256},
            "losses": plan.weights,
            "recipe": json.loads(self.recipe.model_dump_json()),
            "tokenizer_sha256": plan.tokenizer.sha256,
            "corpus_sha256": self.hashes["corpus"],
        }
        parts = plan.config, student.weights | self.pooler, plan.sentences, plan.tokenizer
        save_student(folder, *parts, provenance, plan.inside)

    def report(self, student: TrainedStudent) -> tuple[dict[str, float], dict[str, float]]:
        """Writes the report (first process only) and returns the losses on held-out text before the first
        step and at the end.
        """
        if self.run.is_first:
            out, recipe = self.run.out, self.recipe
            defaults = EncoderDistilRecipe(teacher="", corpus="", out="", steps=1).model_dump(mode="json")
            manifest = Path(recipe.corpus, "manifest.json")
            comparison = [
                {
                    "on held-out text": name.removesuffix("_loss"),
                    "before": student.before.get(name),
                    "after": value,
                }
                for name, value in student.metrics.items()
            ]
            content = RunReport(
                title=f"Distillation · {out.name}",
                records=RunLog.read(out),
                recipe=recipe.model_dump(mode="json"),
                defaults=defaults,
                corpus=json.loads(manifest.read_text(encoding="utf-8")) if manifest.is_file() else None,
                model=self._model_facts(),
                comparison=comparison,
                environment=environment(recipe.seed, self.run.hardware),
            )
            write_report(out, content)
        return student.before, student.metrics

    def _model_facts(self) -> dict[str, Any]:
        """The report's facts about the student, with the teacher's numbers beside them."""
        config, teacher = self.plan.config, self.plan.checkpoint.config
        student = self.task.model
        parts = {
            "token embeddings": student.encoder.embeddings.token,
            "encoder layers": student.encoder.layers,
            "masked-language head": student.masked_language,
            "last product": student.dense,
        }
        return {
            "family": f"{config.model_type} (teacher: {teacher.model_type})",
            "layers": f"{config.num_hidden_layers} (teacher: {teacher.num_hidden_layers})",
            "width": f"{config.hidden_size} (teacher: {teacher.hidden_size})",
            "feed-forward": f"{config.intermediate_size} (teacher: {teacher.intermediate_size})",
            "vocabulary": config.vocab_size,
            "parameters": {
                name: sum(parameter.numel() for parameter in part.parameters())
                for name, part in parts.items()
                if part is not None
            },
        }


def _make_objective(
    run: Run[EncoderDistilRecipe],
    plan: TeachingPlan,
    teacher: Bert,
    train: TokenStore,
    heldout: TokenStore,
) -> tuple[EncoderDistillation, dict[str, torch.Tensor], list[str]]:
    """The objective of student and frozen teacher, the student's pooler, which is saved as it is, and notes
    for the user.
    """
    recipe, out, machine, weights = run.recipe, run.out, run.machine, plan.weights
    stream, head = plan.stream(recipe, train, recipe.seed), plan.head()
    layer = None
    if "relations" in weights:
        layer = (recipe.loss.teacher_layer or teacher.config.num_hidden_layers) - 1
    teacher_head = head if "soft" in weights else None
    frozen = EncoderTeacher(plan.encoder(), machine.device, layer, teacher_head)
    width, projection, beginning = plan.config.hidden_size, None, None
    dimensions = recipe.dimensions or min(plan.width, width)
    if "vectors" in weights and dimensions != plan.full_width:
        settings = machine, plan.pooling, plan.projection, plan.width, dimensions
        projection = learn_projection(out / "projection.safetensors", frozen, stream, *settings)
    torch.manual_seed(recipe.seed)
    if plan.projection is not None:
        beginning = plan.projection.linear_part(teacher.config.hidden_size)
    if projection is not None:
        beginning = projection if beginning is None else projection @ beginning
    student, pooler = make_student_model(recipe, teacher, plan.config, weights, head, beginning)
    if student.masked_language is not None:
        start_at_frequencies(student.masked_language, train, plan.tokenizer)
    student.to(machine.device)
    cache, notes = None, list[str]()
    if set(weights) == {"vectors"}:  # the only output of the teacher, so that it can be cached on disk
        vector_width = width if student.dense is None else student.dense.out_features
        try:
            rows = len(train.sentence_starts) - 1
            cache = VectorCache(out / "teacher", machine.ranks.rank, rows, vector_width)
        except ResourceError as error:
            notes.append(f"the teacher's vectors are computed anew in each epoch: {error}")
    losses = plan.losses(recipe, projection, machine.device)
    rates = MaskingRates(**recipe.masking.model_dump())
    if losses.masks:
        require_masks(stream, Masker(plan.tokenizer, rates))
    task = EncoderDistillation(
        student,
        frozen,
        losses,
        stream,
        plan.stream(recipe, heldout, 0) if len(heldout) else None,
        recipe.evaluation.tokens,
        Masker(plan.tokenizer, rates, machine.device),
        machine.device,
        cache,
    )
    return task, pooler, notes
