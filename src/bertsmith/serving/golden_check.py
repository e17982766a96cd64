"""A model's golden answers asked for again before it is served, in the precision that it is served in."""

from bertsmith.errors import ModelError
from bertsmith.inference.checking.check import TOLERANCES
from bertsmith.inference.engine import autocasting
from bertsmith.serving.served_model import ServedModel
from bertsmith.tasks.checkpoints.sentence_settings import read_sentence_settings
from bertsmith.tasks.computing.task_model import TaskModel
from bertsmith.tasks.golden.comparison import compare
from bertsmith.tasks.golden.records import Answers, Record, answers_of, read_golden
from bertsmith.tasks.golden.subject import MaskSubject, Subject, TaskSubject, VectorSubject
from bertsmith.tasks.pretraining.pretraining import PretrainingModel

_WORK = 2e10  # operations: half a second of a core
_FEWEST = 3  # texts


def require_golden_answers(model: ServedModel) -> None:
    """Some of them, as many as half a second allows; nothing where the folder has none. Raises ModelError
    where one differs by more than the precision may.
    """
    golden = read_golden(model.files.weights)
    if golden is None:
        return
    subject = _subject(model)
    if golden.kind != subject.kind:  # the folder is served for something else
        return
    config, room = subject.encoder.config, _WORK
    weights = 4 * config.hidden_size**2 + 2 * config.hidden_size * getattr(config, "intermediate_size", 0)
    operations = 2 * weights * getattr(config, "num_hidden_layers", 1)  # of a token
    chosen = list[Record]()
    for record in golden.records:
        room -= operations * len(record.ids)
        if isinstance(record.ids, str) or (room < 0 and len(chosen) >= _FEWEST):
            continue
        chosen.append(record)
    with autocasting(subject.encoder, model.device, model.compute_dtype):
        now = answers_of(subject, [record.input for record in chosen])
    expected = Answers(golden.stages, tuple(chosen))
    found = compare(expected, now, TOLERANCES[model.compute_dtype], told=False)
    if found.differences:
        raise ModelError(
            f"{model.path} doesn't answer on this machine as it did when it was written: "
            f"{found.differences[0]}. It isn't served. All that differs: bertsmith check {model.path}"
        )


def _subject(model: ServedModel) -> Subject:
    """The opened model itself, not another copy of it."""
    if model.opened is not None:
        assert isinstance(model.module, TaskModel)
        return TaskSubject(model.module, model.opened, model.tokenizer)
    if isinstance(model.module, PretrainingModel):
        return MaskSubject(model.module, model.tokenizer)
    assert model.encoder is not None
    sentences = read_sentence_settings(model.files.weights)
    return VectorSubject(model.encoder.encoder, model.tokenizer, sentences, model.encoder.projection)
