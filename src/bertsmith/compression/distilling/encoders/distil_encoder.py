"""An encoder taught to a smaller one on raw text: a recipe becomes a run of the one loop.

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

from rich.console import Console

from bertsmith.compression.distilling.encoders.distil_inputs import Prepared, open_teacher, prepare
from bertsmith.compression.distilling.encoders.encoder_recipe import EncoderDistilRecipe, make_encoder_recipe
from bertsmith.compression.distilling.encoders.student_model import save_student
from bertsmith.door import door, flag, kind, optional
from bertsmith.machine import Hardware
from bertsmith.model.cpu.process import keep_memory
from bertsmith.tasks.checkpoints.sentence_folder import encoder_folder
from bertsmith.tasks.golden.records import write_golden
from bertsmith.training.log import RunLog
from bertsmith.training.loop import Loop
from bertsmith.training.machine import wait
from bertsmith.training.observer import run_facts
from bertsmith.training.run import Run
from bertsmith.training.run_folder import open_folder, write_recipe
from bertsmith.training.run_report import RunReport, environment, first_evaluation, write_report
from bertsmith.training.settings import read_toml
from bertsmith.training.sharding import whole_tensors


@dataclass(frozen=True)
class EncoderDistilResult:
    """Where the student is, and how far it is from its teacher on held-out text: before the first step, and
    at the end.
    """

    model: Path
    report: Path
    before: dict[str, float]
    metrics: dict[str, float]


@door(recipe=kind(EncoderDistilRecipe), resume=flag, console=optional(kind(Console)))
def distil_encoder(
    recipe: EncoderDistilRecipe, *, resume: bool = False, console: Console | None = None
) -> EncoderDistilResult:
    """Teaches a smaller encoder what `recipe.teacher` makes of the text of `recipe.corpus`.

    What is taught follows from the teacher: masked words and hidden states (Sanh et al. 2019), the vectors of
    texts, or hidden states alone; relations of self-attention beside them where the student has another shape
    (Wang et al. 2021). With `resume`, goes on from the last whole checkpoint of `out`. Under torchrun, every
    process calls this. Raises RecipeError, ModelError, CorpusError, StoreError and ResourceError before
    anything is trained, and TrainingStopped when the guard ends the run.
    """

    def stored(path: Path) -> EncoderDistilRecipe:
        return make_encoder_recipe(read_toml(path, str(path)), [])

    def look() -> EncoderDistilRecipe:
        open_folder(Path(recipe.out), recipe, stored, resume, "the same command with --resume")
        return recipe

    with Run.open(look, resume, console) as run:
        return _run(run)


def _run(run: Run[EncoderDistilRecipe]) -> EncoderDistilResult:
    keep_memory()
    recipe, out, machine, first = run.recipe, run.out, run.machine, run.is_first
    opened = open_teacher(recipe)
    prepared = prepare(recipe, opened, out, machine, run.console)
    if first:
        write_recipe(recipe, out)
    task = prepared.task
    facts = run_facts(task.model, opened.config, Path(recipe.corpus).name, machine)
    facts["teacher"] = f"teacher {Path(recipe.teacher).name}"
    observer = run.observer("Distillation", facts, recipe)
    loop = Loop(task, recipe, machine, out, observer)
    notes = [*opened.checkpoint.notes, *prepared.notes, *(loop.resume() if run.resume else [])]
    with observer.open(loop.progress.step, notes):
        if loop.is_new:
            before = loop.evaluate()
        else:  # what the run that goes on had measured before its first step
            logged = first_evaluation(RunLog.read(out)) or {}
            before = {name: logged[name] for name in logged if name == "loss" or name.endswith("_loss")}
        loop.run()
        metrics = loop.evaluate()
        observer.record("end", loop.progress.step, elapsed=loop.progress.elapsed, reason="finished")
    weights = whole_tensors(task.model.state_dict(), keep=first)
    if first:
        provenance = _provenance(recipe, prepared, loop.progress.step, metrics)
        saved = out / "model", opened.config, weights | prepared.pooler, opened.subject
        save_student(*saved, opened.tokenizer, provenance, encoder_folder(opened.folder))
        write_golden(out / "model")
        _write_report(out, recipe, prepared, before, metrics, run.hardware)
    wait()
    return EncoderDistilResult(out / "model", out / "report.html", before, metrics)


def _provenance(
    recipe: EncoderDistilRecipe, prepared: Prepared, step: int, metrics: dict[str, float]
) -> dict[str, Any]:
    opened = prepared.opened
    return {
        "steps": step,
        "metrics": metrics,
        "teacher": {"name": recipe.teacher, "sha256": opened.sha256},
        "losses": opened.subject.weights,
        "recipe": json.loads(recipe.model_dump_json()),
        "tokenizer_sha256": opened.tokenizer.sha256,
        "corpus_sha256": prepared.corpus_sha256,
    }


def _write_report(
    out: Path,
    recipe: EncoderDistilRecipe,
    prepared: Prepared,
    before: dict[str, float],
    metrics: dict[str, float],
    hardware: Hardware,
) -> None:
    defaults = EncoderDistilRecipe(teacher="", corpus="", out="", steps=1).model_dump(mode="json")
    manifest = Path(recipe.corpus, "manifest.json")
    comparison = [
        {"on held-out text": name.removesuffix("_loss"), "before": before.get(name), "after": value}
        for name, value in metrics.items()
    ]
    content = RunReport(
        title=f"Distillation · {out.name}",
        records=RunLog.read(out),
        recipe=recipe.model_dump(mode="json"),
        defaults=defaults,
        corpus=json.loads(manifest.read_text(encoding="utf-8")) if manifest.is_file() else None,
        model=_model_facts(prepared),
        comparison=comparison,
        environment=environment(recipe.seed, hardware),
    )
    write_report(out, content)


def _model_facts(prepared: Prepared) -> dict[str, Any]:
    """Of the student, with the numbers of its teacher."""
    config, teacher = prepared.opened.config, prepared.opened.checkpoint.config
    student = prepared.task.model
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
