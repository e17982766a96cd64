"""A smaller encoder learns what a larger one makes of raw text: teacher and corpus → student → the one loop →
figures.

out/recipe.toml              the resolved recipe        out/log.jsonl     the truth
out/data.json                hashes of teacher and text
out/tokens/                  the token store            out/checkpoints/  training state
out/projection.safetensors   fewer dimensions           out/teacher/      the teacher's vectors
out/model/                   the student                out/report.html   the same to look at
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bertsmith.compression.distilling.encoders.objective import EncoderDistillation
from bertsmith.compression.distilling.encoders.student import make_trained, save_student
from bertsmith.compression.distilling.encoders.subject import TeachingPlan
from bertsmith.compression.distilling.encoders.teacher import EncoderTeacher, VectorCache, learn_projection
from bertsmith.compression.distilling.recipes import EncoderDistilRecipe
from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.data.store import TokenStore
from bertsmith.errors import CorpusError, ResourceError
from bertsmith.files import require_free_space
from bertsmith.model.bert import Bert
from bertsmith.tasks.pretraining.pretraining import start_at_frequencies
from bertsmith.training.inputs import note_on_unknown, open_stores
from bertsmith.training.log import RunLog
from bertsmith.training.loop import Loop
from bertsmith.training.observer import run_facts
from bertsmith.training.run import Run
from bertsmith.training.run_report import RunReport, environment, first_evaluation, write_report
from bertsmith.training.sharding import whole_tensors
from bertsmith.training.streams import require_masks

_CHECKPOINT_BYTES = 12  # a weight's, and of its two moments


@dataclass(frozen=True)
class EncoderStudent:
    """Its weights, how far it is from its teacher before the first step and at the end, after `steps`."""

    weights: dict[str, torch.Tensor]
    before: dict[str, float]
    metrics: dict[str, float]
    steps: int


@dataclass(frozen=True)
class EncoderLesson:
    """Fulfils `Lesson` for an encoder or an embedding model, which is asked anew in each step. `pooler` are
    tensors that go into the saved model as they are.
    """

    run: Run[EncoderDistilRecipe]
    subject: TeachingPlan
    task: EncoderDistillation
    pooler: dict[str, torch.Tensor]
    hashes: dict[str, str]
    notes: tuple[str, ...]
    own_task: None = None

    @property
    def recipe(self) -> EncoderDistilRecipe:
        """As it was given: nothing of it is chosen."""
        return self.run.recipe

    @classmethod
    def open(cls, run: Run[EncoderDistilRecipe]) -> "EncoderLesson":
        """Tokenises the corpus where need be, and makes the student. Raises RecipeError where the folder has
        what another teacher, or another store, said.
        """
        recipe, out, machine = run.recipe, run.out, run.machine
        subject = TeachingPlan.open(recipe)
        tokenizer = subject.tokenizer
        teacher = subject.encoder()
        numbers = sum(parameter.numel() for parameter in teacher.parameters())
        need = ((recipe.checkpoint.keep + 1) * _CHECKPOINT_BYTES + 4) * numbers
        require_free_space(out, need, "The run's checkpoints and model")
        train, heldout = open_stores(recipe.corpus, tokenizer, out / "tokens", machine.ranks, run.console)
        if len(train) == 0:
            raise CorpusError(
                f"{train.path} holds no document. Build the corpus with a smaller held-out share."
            )
        notes = list(note_on_unknown(train, tokenizer))
        if not len(heldout):
            notes.append("nothing is measured: the held-out part of the corpus is empty")
        hashes = {"teacher": subject.sha256, "corpus": train.corpus_sha256}
        run.note_data(hashes)
        task, pooler, more = _begin(run, subject, teacher, train, heldout)
        return cls(run, subject, task, pooler, hashes, (*notes, *more))

    def learn(self) -> EncoderStudent:
        """Trained to the last step, from where it stood on resuming."""
        run, task = self.run, self.task
        facts = run_facts(task.model, self.subject.config, Path(run.recipe.corpus).name, run.machine)
        facts["teacher"] = f"teacher {Path(run.recipe.teacher).name}"
        observer = run.observer("Distillation", facts, run.recipe)
        loop = Loop(task, run.recipe, run.machine, run.out, observer)
        notes = [*self.subject.checkpoint.notes, *self.notes, *(loop.resume() if run.resume else [])]
        with observer.open(loop.progress.step, notes):
            if loop.is_new:
                before = loop.evaluate()
            else:  # what the run that goes on had measured before its first step
                logged = first_evaluation(RunLog.read(run.out)) or {}
                before = {name: logged[name] for name in logged if name == "loss" or name.endswith("_loss")}
            loop.run()
            metrics = loop.evaluate()
            observer.record("end", loop.progress.step, elapsed=loop.progress.elapsed, reason="finished")
        weights = whole_tensors(task.model.state_dict(), keep=run.is_first)
        return EncoderStudent(weights, before, metrics, loop.progress.step)

    def save(self, student: EncoderStudent, folder: Path) -> None:
        """With where it comes from: teacher, losses, recipe, metrics and the text's hash."""
        subject = self.subject
        provenance = {
            "steps": student.steps,
            "metrics": student.metrics,
            "teacher": {"name": self.recipe.teacher, "sha256": subject.sha256},
            "losses": subject.weights,
            "recipe": json.loads(self.recipe.model_dump_json()),
            "tokenizer_sha256": subject.tokenizer.sha256,
            "corpus_sha256": self.hashes["corpus"],
        }
        parts = subject.config, student.weights | self.pooler, subject.sentences, subject.tokenizer
        save_student(folder, *parts, provenance, subject.inside)

    def report(self, student: EncoderStudent) -> tuple[dict[str, float], dict[str, float]]:
        """Its losses on held-out text before the first step and at the end."""
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
        """Of the student, with the numbers of its teacher."""
        config, teacher = self.subject.config, self.subject.checkpoint.config
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


def _begin(
    run: Run[EncoderDistilRecipe],
    subject: TeachingPlan,
    teacher: Bert,
    train: TokenStore,
    heldout: TokenStore,
) -> tuple[EncoderDistillation, dict[str, torch.Tensor], list[str]]:
    """The student beside its frozen teacher, what goes into the saved model as it is, and sentences for the
    user.
    """
    recipe, out, machine, weights = run.recipe, run.out, run.machine, subject.weights
    stream, head = subject.stream(recipe, train, recipe.seed), subject.head()
    layer = None
    if "relations" in weights:
        layer = (recipe.loss.teacher_layer or teacher.config.num_hidden_layers) - 1
    asked = head if "soft" in weights else None
    frozen = EncoderTeacher(subject.encoder(), machine.device, layer, asked)
    whole, width, projection = teacher.config.hidden_size, subject.config.hidden_size, None
    dimensions = recipe.dimensions or min(subject.width, width)
    if "vectors" in weights and dimensions != whole:
        how = machine, subject.pooling, subject.width, dimensions
        projection = learn_projection(out / "projection.safetensors", frozen, stream, *how)
    torch.manual_seed(recipe.seed)
    student, pooler = make_trained(recipe, teacher, subject.config, weights, head, projection)
    if student.masked_language is not None:
        start_at_frequencies(student.masked_language, train, subject.tokenizer)
    student.to(machine.device)
    cache, notes = None, list[str]()
    if set(weights) == {"vectors"}:  # nothing else is needed of the teacher, and the disk may have room
        kept = width if student.dense is None else student.dense.out_features
        try:
            rows = len(train.sentence_starts) - 1
            cache = VectorCache(out / "teacher", machine.ranks.rank, rows, kept)
        except ResourceError as error:
            notes.append(f"the teacher's vectors are computed anew in each epoch: {error}")
    comparison = subject.comparison(recipe, None if projection is None else projection.to(machine.device))
    rates = MaskingRates(**recipe.masking.model_dump())
    if comparison.masks:
        require_masks(stream, Masker(subject.tokenizer, rates))
    task = EncoderDistillation(
        student,
        frozen,
        comparison,
        stream,
        subject.stream(recipe, heldout, 0) if len(heldout) else None,
        recipe.evaluation.tokens,
        Masker(subject.tokenizer, rates, machine.device),
        machine.device,
        cache,
    )
    return task, pooler, notes
