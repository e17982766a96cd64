"""What a recipe of a distillation names, found and opened: teacher, texts, and the student made of both."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from bertsmith.compression.distilling.encoders.encoder_recipe import EncoderDistilRecipe
from bertsmith.compression.distilling.encoders.kinds import Subject, choose_subject
from bertsmith.compression.distilling.encoders.losses import relation_heads
from bertsmith.compression.distilling.encoders.objective import (
    SHORTEST,
    Comparison,
    EncoderDistillation,
    TextStream,
)
from bertsmith.compression.distilling.encoders.student_model import Student, make_trained, shape_of
from bertsmith.compression.distilling.encoders.teacher import Teacher, learned_once, sample_size, sampled
from bertsmith.compression.distilling.encoders.vector_cache import VectorCache
from bertsmith.data.batch import PackedBatch, split
from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import PretrainingStream
from bertsmith.errors import CorpusError, RecipeError, ResourceError
from bertsmith.files import require_free_space, sha256
from bertsmith.inference.embedding.vectors import Vectors, normalised
from bertsmith.model.checkpoint import WEIGHTS, Checkpoint, encoder_of, load_into, read_checkpoint
from bertsmith.model.config import BertConfig
from bertsmith.model.locate import locate_model
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.model.student import is_alike
from bertsmith.tasks.checkpoints.sentence_folder import encoder_folder
from bertsmith.tasks.heads.pooling import pool_sequences
from bertsmith.tasks.pretraining.pretraining import MaskedLanguageHead, start_at_frequencies
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.inputs import note_on_unknown, open_stores, require_room_for_rows
from bertsmith.training.machine import Machine, wait
from bertsmith.training.run_folder import require_same_data, write_data_hashes
from bertsmith.training.streams import require_masks

_CHECKPOINT_BYTES = 12  # a weight's, and of its two moments
_SAMPLE_MICRO_BATCH = 4096  # tokens


@dataclass(frozen=True)
class Opened:
    """The teacher as it was read, and what it teaches to whom."""

    folder: Path
    checkpoint: Checkpoint
    tokenizer: Tokenizer
    subject: Subject
    config: BertConfig  # the student's

    @cached_property
    def sha256(self) -> str:
        """Of the teacher's weights."""
        return sha256(encoder_folder(self.folder) / WEIGHTS)

    @property
    def prefixes(self) -> list[list[int]]:
        """Token ids of what stands before the texts whose vectors are compared; none where none are."""
        sentences = self.subject.sentences
        if "vectors" not in self.subject.weights or sentences is None:
            return []
        query, document = sentences.query_prefix, sentences.document_prefix
        texts = dict.fromkeys((query, document, sentences.default_prompt or document))
        return [list(self.tokenizer.encode(text).ids) for text in texts]

    @property
    def width(self) -> int:
        """Dimensions of the teacher's vectors."""
        sentences = self.subject.sentences
        kept = None if sentences is None else sentences.truncate_dim
        return min(self.checkpoint.config.hidden_size, kept or self.checkpoint.config.hidden_size)


@dataclass(frozen=True)
class Prepared:
    """All that the loop needs. `pooler` are tensors that go into the saved model as they are."""

    opened: Opened
    task: EncoderDistillation
    pooler: dict[str, Tensor]
    corpus_sha256: str
    notes: tuple[str, ...]


def open_teacher(recipe: EncoderDistilRecipe) -> Opened:
    """Reads and checks; writes nothing. Raises ModelError and RecipeError."""
    require_room_for_rows(recipe.corpus, recipe.data.sequence_length, "data.sequence_length")
    folder = locate_model(recipe.teacher).folder
    inside = encoder_folder(folder)
    checkpoint = read_checkpoint(inside)
    config = shape_of(recipe, checkpoint.config)
    same = config.hidden_size == checkpoint.config.hidden_size and is_alike(config, checkpoint.config)
    subject = choose_subject(recipe, folder, checkpoint, same)
    tokenizer = load_own_tokenizer(inside, checkpoint.config)
    if recipe.data.sequence_length > min(checkpoint.config.max_length, config.max_length):
        raise RecipeError(
            f"data.sequence_length is {recipe.data.sequence_length}, but teacher and student have positions "
            f"for {min(checkpoint.config.max_length, config.max_length)} tokens. Shorten it."
        )
    _check_numbers(recipe, checkpoint.config)
    opened = Opened(folder, checkpoint, tokenizer, subject, config)
    if recipe.dimensions is not None and recipe.dimensions > opened.width:
        raise RecipeError(
            f"dimensions is {recipe.dimensions}, but the teacher's vectors have {opened.width}: choose at "
            "most as many."
        )
    _require_room_behind_prompts(recipe, opened)
    return opened


def prepare(
    recipe: EncoderDistilRecipe, opened: Opened, out: Path, machine: Machine, console: Console | None
) -> Prepared:
    """Tokenises the corpus where need be, and makes the student. Raises RecipeError where the folder has what
    another teacher, or another store, said.
    """
    teacher = encoder_of(opened.checkpoint, f"{opened.folder}/{WEIGHTS}")
    weights = sum(parameter.numel() for parameter in teacher.parameters())
    need = ((recipe.checkpoint.keep + 1) * _CHECKPOINT_BYTES + 4) * weights
    require_free_space(out, need, "The run's checkpoints and model")
    train, heldout = open_stores(recipe.corpus, opened.tokenizer, out / "tokens", machine.ranks, console)
    if len(train) == 0:
        raise CorpusError(f"{train.path} holds no document. Build the corpus with a smaller held-out share.")
    unknown = note_on_unknown(train, opened.tokenizer)
    hashes = {"teacher": opened.sha256, "corpus": train.corpus_sha256}
    require_same_data(out, hashes)
    wait()  # no rank may find what the first one is about to write
    if machine.ranks.is_first:
        write_data_hashes(out, hashes)
    notes = () if len(heldout) else ("nothing is measured: the held-out part of the corpus is empty",)
    stream = _stream(recipe, opened, train, recipe.seed)
    head = _teachers_head(opened)
    asked = head if "soft" in opened.subject.weights else None
    frozen = Teacher(encoder_of(opened.checkpoint, ""), machine.device, _taught_layer(recipe, opened), asked)
    projection = _projection(recipe, opened, stream, frozen, out, machine)
    torch.manual_seed(recipe.seed)
    student, pooler = make_trained(recipe, teacher, opened.config, opened.subject.weights, head, projection)
    if student.masked_language is not None:
        start_at_frequencies(student.masked_language, train, opened.tokenizer)
    student.to(machine.device)
    cache, kept = _cache(opened.subject, train, student, machine, out)
    comparison = _comparison(recipe, opened, projection, machine)
    rates = MaskingRates(**recipe.masking.model_dump())
    if comparison.masks:
        require_masks(stream, Masker(opened.tokenizer, rates))
    task = EncoderDistillation(
        student,
        frozen,
        comparison,
        stream,
        _stream(recipe, opened, heldout, 0) if len(heldout) else None,
        recipe.evaluation.tokens,
        Masker(opened.tokenizer, rates, machine.device),
        machine.device,
        cache,
    )
    return Prepared(opened, task, pooler, train.corpus_sha256, (*unknown, *notes, *kept))


def _check_numbers(recipe: EncoderDistilRecipe, teacher: BertConfig) -> None:
    if recipe.loss.teacher_layer is not None and recipe.loss.teacher_layer > teacher.num_hidden_layers:
        raise RecipeError(
            f"loss.teacher_layer is {recipe.loss.teacher_layer}, but the teacher has only "
            f"{teacher.num_hidden_layers} layers. Choose one of them."
        )


def _require_room_behind_prompts(recipe: EncoderDistilRecipe, opened: Opened) -> None:
    taken = 2 + max(map(len, opened.prefixes), default=0)
    if recipe.data.sequence_length < taken + SHORTEST:
        raise RecipeError(
            f"data.sequence_length is {recipe.data.sequence_length}, of which the teacher's prompt and two "
            f"special tokens take {taken}: hardly any text is left. Make it {taken + SHORTEST} or more."
        )


def _teachers_head(opened: Opened) -> MaskedLanguageHead | None:
    """What the student's begins as; None where no words are masked, and where the teacher has none."""
    if not opened.subject.masks or "masked_language" not in opened.checkpoint.parts:
        return None
    head = MaskedLanguageHead(opened.checkpoint.config)
    prefix = "masked_language."
    tensors = {name: each for name, each in opened.checkpoint.tensors.items() if name.startswith(prefix)}
    where = f"{opened.folder}/{WEIGHTS}"
    load_into(nn.ModuleDict({"masked_language": head}), tensors, opened.checkpoint.config, where)
    return head


def _taught_layer(recipe: EncoderDistilRecipe, opened: Opened) -> int | None:
    """Counted from 0; None for none."""
    if "relations" not in opened.subject.weights:
        return None
    return (recipe.loss.teacher_layer or opened.checkpoint.config.num_hidden_layers) - 1


def _stream(recipe: EncoderDistilRecipe, opened: Opened, store: TokenStore, seed: int) -> PretrainingStream:
    """Texts where their vectors are compared, else full sequences."""
    length = recipe.data.sequence_length
    budget = recipe.data.batch_size * length
    if not (prefixes := opened.prefixes):
        return PretrainingStream(store, opened.tokenizer, seed, False, length, budget)
    return TextStream(store, opened.tokenizer, seed, False, length, budget, prefixes=prefixes)


def _comparison(
    recipe: EncoderDistilRecipe, opened: Opened, projection: Tensor | None, machine: Machine
) -> Comparison:
    widths = opened.checkpoint.config.hidden_size, opened.config.hidden_size
    return Comparison(
        opened.subject.weights,
        recipe.loss.temperature,
        relation_heads(*widths, recipe.loss.relation_heads),
        "mean" if opened.subject.sentences is None else opened.subject.sentences.pooling,
        None if projection is None else projection.to(machine.device),
    )


def _projection(
    recipe: EncoderDistilRecipe,
    opened: Opened,
    stream: PretrainingStream,
    teacher: Teacher,
    out: Path,
    machine: Machine,
) -> Tensor | None:
    """(D, H), learned by the first rank, where vectors have fewer dimensions than the teacher is wide."""
    width = opened.checkpoint.config.hidden_size
    dimensions = recipe.dimensions or min(opened.width, opened.config.hidden_size)
    if "vectors" not in opened.subject.weights or dimensions == width:
        return None
    pooling = opened.subject.sentences.pooling if opened.subject.sentences is not None else "mean"

    def learn() -> Vectors:
        found = [np.zeros((0, width), np.float32)]
        for batch in sampled(stream, sample_size(width)):
            for part in split(batch, 1, _SAMPLE_MICRO_BATCH)[0]:
                packed = PackedBatch.of(part, machine.device)
                with machine.autocast():
                    states = teacher(packed).states
                found.append(normalised(pool_sequences(states.float(), packed, pooling).cpu().numpy()))
                found[-1][:, opened.width :] = 0  # what the teacher cuts off is in no direction
        return np.concatenate(found)

    path = out / "projection.safetensors"
    if machine.ranks.is_first:
        learned_once(path, width, dimensions, learn)
    wait()
    return learned_once(path, width, dimensions, learn)


def _cache(
    subject: Subject, train: TokenStore, student: Student, machine: Machine, out: Path
) -> tuple[VectorCache | None, tuple[str, ...]]:
    """Where nothing but vectors is needed of the teacher, and the disk has room for them."""
    if not subject.only_vectors:
        return None, ()
    width = student.config.hidden_size if student.dense is None else student.dense.out_features
    rows = len(train.sentence_starts) - 1
    try:
        return VectorCache(out / "teacher", machine.ranks.rank, rows, width), ()
    except ResourceError as error:
        return None, (f"the teacher's vectors are computed anew in each epoch: {error}",)
