"""A tag for each word: hidden state of its first piece → dropout → dense → softmax, or a CRF over the
sentence (Devlin et al. 2019, section 5.3; Lample et al. 2016).

W words, C labels, R rows that the head reads: one a word.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import field_validator, model_validator
from torch import Tensor, nn

from bertsmith.arrays import Ints
from bertsmith.data.batch import to_device
from bertsmith.errors import InputError
from bertsmith.metrics.baselines import frequent_tags, majority_tag
from bertsmith.metrics.entities import (
    NONE,
    Scheme,
    SchemeName,
    are_entity_tags,
    entity_scores,
    recognise,
    scheme_name,
    scheme_of_labels,
    tag_counts,
    tag_metrics,
    to_iob2,
)
from bertsmith.model.config import BertConfig
from bertsmith.tasks.evaluating.error_analysis import ErrorAnalysis, tag_errors
from bertsmith.tasks.examples.encoding import (
    EncodedExample,
    special_tokens,
)
from bertsmith.tasks.examples.tagged_example import (
    TaggedExample,
    example_of_text,
    read_examples,
    read_texts,
    tagged_prediction,
    windows_of_words,
    word_pieces,
)
from bertsmith.tasks.heads.classifier_head import RowHead
from bertsmith.tasks.heads.crf import ConditionalRandomField, TransitionScores, legal_scores, viterbi
from bertsmith.tasks.losses.distillation import DistillationLoss, WordLoss
from bertsmith.tasks.saved_state import require_truth
from bertsmith.tasks.task import (
    UNBOUND,
    AnswerNumber,
    Bound,
    Head,
    Metrics,
    Outputs,
    Prediction,
    Task,
    TaskSettings,
)
from bertsmith.text.files.values import ID, shown
from bertsmith.text.tokens.long_texts import TextEncoding
from bertsmith.text.tokens.tokenizer import Tokenizer

_LEAST_PROBABILITY = 1e-9  # keeps logarithms finite


class TaggingSettings(TaskSettings):
    """Settings of tagging.

    `crf` learns which tag follows which. With and without it, decoding allows only legal sequences. With
    `constrained` false each word gets its likeliest tag, for models of other libraries that may begin an
    entity with I- (IOB1), which IOB2 forbids. `scheme` is the scheme of the files' tags; by default it is
    recognised for each file. With "none" tags are taken as they are, whatever they look like.

    `missing`: rows without a text are refused, left out (drop), or taken as they are (keep).

    `text` and `label` are the columns of words and tags. Long sentences are always read as windows that
    overlap by `stride` or a quarter, because cutting would leave words without a tag.
    """

    of_model: ClassVar[frozenset[str]] = TaskSettings.of_model | {"crf", "constrained"}
    crf: bool = False
    """A conditional random field over the tags."""
    constrained: bool = True
    """Only legal sequences of tags are predicted; false: each word's likeliest tag, for models that
    `transformers` saved."""
    scheme: SchemeName | None = None
    """How the tags are written, `--scheme`; by default recognised."""
    missing: Literal["refuse", "drop", "keep"] = "refuse"
    """As for classification, of rows without a text."""

    @field_validator("scheme", mode="before")
    @classmethod
    def _find_scheme_name(cls, value: Any) -> Any:
        return scheme_name(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _require_constrained_crf(self) -> Self:
        if self.crf and not self.constrained:
            raise ValueError("a CRF decodes legal sequences only: leave constrained as it is")
        return self


class TaggingHead(RowHead):
    """Scores for the first token of each word, and a CRF if asked for. The CRF's scores have a higher
    learning rate.
    """

    architecture: str | None = "ForTokenClassification"

    def __init__(self, config: BertConfig, labels: Sequence[str], crf: bool) -> None:
        super().__init__(config, config.family.token_head, len(labels))
        self.crf = ConditionalRandomField(labels) if crf else None
        for parameter in self.crf.parameters() if self.crf else ():
            parameter.learning_rate_factor = 20.0  # type: ignore[attr-defined]


class Tagging(Task[TaggedExample]):
    """A tag for each word. Entity tags are IOB2 inside the task."""

    name = "tagging"
    is_pretokenized = True
    activation = "softmax"
    decided = ("tags",)
    is_linear = True
    needs_training = True
    answers_are_labels = True
    student_settings: ClassVar[Mapping[str, Any]] = {"crf": False}  # its answers have it
    Settings: ClassVar[type[TaskSettings]] = TaggingSettings
    settings: TaggingSettings
    _crf: ConditionalRandomField | None = None

    def __init__(self, settings: TaskSettings, labels: Sequence[str] = ()) -> None:
        super().__init__(settings, labels)
        self._schemes = dict[str, Scheme]()  # of the files read, by path
        self._syllables = False  # trained on texts with spans, where Korean is divided into syllables

    @property
    def main_metric(self) -> str:  # type: ignore[override]
        """F1 for entities; accuracy for other tags such as parts of speech, where every word has a tag."""
        return "f1" if self.entity_tags else "accuracy"

    @property
    def entity_tags(self) -> bool:
        """Whether the labels are entity tags, and not parts of speech or the like."""
        return self._scheme.name != NONE

    @property
    def _scheme(self) -> Scheme:
        """The scheme of the labels: IOB2, unless the model comes from another library."""
        if self.settings.scheme == NONE:
            return Scheme(NONE)
        return scheme_of_labels(self.labels, trained_here=self.settings.scheme is not None)

    def read(self, path: Path | str, *, labelled: bool = True) -> list[TaggedExample]:
        """Reads CoNLL columns, or JSON lines of words and tags or of text and spans; to predict, also lines
        of text. Sentences of one document are never divided between train and dev if a file has ten documents
        or more.
        """
        settings = self.settings
        layout = {"format": settings.format, "encoding": settings.encoding}
        columns = {"word_column": settings.text, "tag_column": settings.label}
        if not labelled:
            return read_texts(path, **columns, **layout, syllables=self._syllables)
        examples = read_examples(
            path, **columns, **layout, scheme_of=lambda sentences: self._find_scheme(sentences, str(path))
        )
        keeps = settings.missing == "keep"
        return self.complete(
            examples, ["" if keeps or example.words else "text" for example in examples], path
        )

    def has_text(self, example: TaggedExample) -> bool:
        return bool(example.words)

    def _find_scheme(self, sentences: Sequence[Sequence[str]], path: str) -> Scheme:
        """The scheme of a file's tags. It is the one in the settings or, if that doesn't fit a later file,
        the one that is recognised there. The scheme of the first file is kept as the setting, which helps
        with the next.
        """
        if self.labels and not self.entity_tags:
            scheme = Scheme(NONE)
        else:
            try:
                scheme = recognise(sentences, self.settings.scheme)
                if (self._schemes or self.labels) and not scheme.fits(sentences):
                    other = recognise(sentences)
                    scheme = other if other.fits(sentences) else scheme
            except InputError as error:
                raise InputError(f"{path}: {error}") from error
        self._schemes[path] = scheme
        if not self.labels and self.settings.scheme is None:
            self.settings = self.settings.model_copy(update={"scheme": scheme.name})
        return scheme

    def remarks(self) -> dict[str, str]:
        """In which scheme each file's tags were read; files of one name are told apart by their folders."""
        files, parts = {path: Path(path).parts for path in self._schemes}, 1
        while len({own[-parts:] for own in files.values()}) < len(set(files.values())):
            parts += 1
        return {
            f"scheme of {'/'.join(files[path][-parts:])}": str(scheme)
            for path, scheme in self._schemes.items()
        }

    def example(self, text: str | Sequence[str], where: str = "the input") -> TaggedExample:
        """An untagged example from a text, or from its words."""
        if isinstance(text, str):
            return example_of_text(text, where, syllables=self._syllables)
        if not isinstance(text, Sequence) or not all(isinstance(word, str) for word in text):
            raise InputError(f"{where}: expected a text, or its words, found {shown(text)}.")
        return TaggedExample(tuple(text), None, where)

    def fit(self, train: Sequence[TaggedExample]) -> None:
        if self.settings.scheme is None:  # rows that weren't read from a file
            scheme = recognise([example.tags or () for example in train])
            self.settings = self.settings.model_copy(update={"scheme": scheme.name})
        self._syllables = any(example.text is not None for example in train)
        self.labels = ()
        tags = {tag for example in train for tag in self._legal(example.tags or ())}
        if len(tags) < 2:
            raise InputError(
                f"The training words have {len(tags)} tag(s), from {train[0].where} on: there is nothing to "
                "tell apart. Is --label the right column?"
            )
        self.labels = tuple(sorted(tags, key=lambda tag: (tag != "O", tag[2:], tag)))

    def check(self, examples: Sequence[TaggedExample]) -> None:
        known = {*self.labels, *self._iob2_labels()}
        for example in examples:
            for tag in self._legal(example.tags or ()):
                if tag not in known:
                    self.require_known(tag, example.where, "tag")

    def warnings(self, examples: Sequence[TaggedExample]) -> list[str]:
        """Warns of marked entities that had to be widened to whole words."""
        widened = [example for example in examples if example.widened]
        if not widened:
            return []
        count = sum(example.widened for example in widened)
        return [
            f"{count:,} marked entities begin or end amid a word and were widened to whole words, the first "
            f"in {widened[0].where}"
        ]

    def labels_of(self, example: TaggedExample) -> list[str]:
        # in order, for a set's changes from run to run and decides which label a warning names
        return sorted(set(self._legal(example.tags or ())))

    def texts(self, example: TaggedExample) -> Sequence[str]:
        """The words of the example, tokenised one by one. In a script without blanks, the runs between
        blanks.
        """
        return example.runs

    def window(self, tokenizer: Tokenizer) -> tuple[int, int]:
        """How many tokens of text a window holds, and how many of them the next window shares."""
        room = self.settings.max_length - special_tokens(tokenizer, 1)
        return room, room // 4 if self.settings.stride is None else self.settings.stride

    def encode(
        self, example: TaggedExample, pieces: Sequence[TextEncoding], tokenizer: Tokenizer
    ) -> EncodedExample:
        """Windows of tokens. The head reads the first token of each word, in the window that shows most of
        its context.
        """
        tokens = word_pieces(example, pieces, tokenizer, skip_mark=self.settings.constrained)
        words = tokens.rows
        encoded_windows = windows_of_words(tokens, tokenizer, self.settings.max_length, self.settings.stride)
        target = None
        if example.tags is not None:
            tags = self._legal(example.tags)
            if words is not None:
                tags = self._legal(_row_tags(tags, words))
            numbers = [self.label_ids.get(tag, -1) for tag in tags]
            # With another library's scheme there is no target to train on: only the entities are compared.
            target = None if -1 in numbers else np.array(numbers, np.int64)
        return EncodedExample(encoded_windows, target, words)

    def head(self, config: BertConfig) -> Head:
        return TaggingHead(config, self.labels, self.settings.crf)

    def bind(self, head: Head) -> None:
        """Takes the CRF, whose transitions the loss and decoding need."""
        self._crf = head.crf if isinstance(head, TaggingHead) else None

    def bound_weights(self) -> Bound:
        """The CRF's transition scores by name; empty without a CRF."""
        learned = self._crf.named_parameters() if self._crf is not None else ()
        return {name: weights.detach().float().cpu().numpy().copy() for name, weights in learned}

    def loss(self, outputs: Tensor, targets: Sequence[Any]) -> Tensor:
        """Cross-entropy of each word, or the CRF's negative log-likelihood."""
        gold = np.concatenate(targets)
        if self._crf is not None:
            lengths = tuple(len(target) for target in targets)
            return self._crf.loss(outputs.float(), torch.from_numpy(gold), lengths)
        return nn.functional.cross_entropy(outputs.float(), to_device(gold, outputs.device), reduction="sum")

    def count(self, targets: Sequence[Any]) -> float:
        """The number of words, at least one."""
        return max(sum(len(target) for target in targets), 1)

    def distillation_loss(self, temperature: float, head: Head) -> DistillationLoss:
        return WordLoss(temperature)

    def spellings(self, text: str) -> Iterator[str]:
        """Forms whose tokens differ from the text's: byte-level tokens of words that are given one by one
        begin with a blank, even at the beginning of the text.
        """
        example = self.example(text)
        yield f" {text}"
        yield " ".join(["", *example.runs])
        yield " ".join(example.words)  # of a run of over a hundred characters, which would be [UNK]

    def decoding(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """The window's stride, and the scores that Viterbi adds to the logits: of a sentence's first tag, of
        each pair of neighbouring tags, and of the last tag. null means forbidden; without constraints all are
        0.
        """
        scores = legal_scores(self.labels) if self._crf is None else self._crf.scores()
        if not self.settings.constrained:
            scores = TransitionScores(*map(torch.zeros_like, scores))
        transitions: dict[str, Any] = {}
        for name, part in scores._asdict().items():
            plain = part.detach().double().numpy().astype(object)
            plain[~part.detach().isfinite().numpy()] = None  # JSON has no infinity
            transitions[name] = plain.tolist()
        transitions["learnt"] = self._crf is not None
        return {"stride": self.window(tokenizer)[1], "transitions": transitions}

    def teach(self, outputs: Sequence[Outputs]) -> list[Outputs]:
        """Without a CRF the outputs themselves. With a CRF, the logarithms of each word's marginal
        probabilities given the whole sentence, so that they include the transitions.
        """
        if self._crf is None:
            return list(outputs)
        lengths = tuple(map(len, outputs))
        marginals = self._crf.marginals(torch.from_numpy(np.concatenate(outputs)), lengths)
        answers = marginals.clamp(min=_LEAST_PROBABILITY).log().float().numpy()
        return np.split(answers, np.cumsum(lengths)[:-1])

    def as_label(self, example: TaggedExample, prediction: Prediction) -> TaggedExample:
        return replace(example, tags=tuple(self.in_iob2(prediction["tags"])))

    def answer_number(
        self, example: TaggedExample, encoded: EncodedExample, outputs: Outputs, target: str | int | None
    ) -> AnswerNumber:
        """`target` is the index of a word; None stands for the first word whose tag isn't O. The tag is that
        of the best legal path, and its number the softmax over the word's own scores.
        """
        (prediction,) = self.decode([outputs], [example], [encoded])
        tags = prediction["tags"]
        if not tags:
            raise InputError("The text has no words, so there is no tag to explain. Give a text with words.")
        word = int(target) if isinstance(target, str) and target.isdecimal() else target
        if word is None:
            word = next((index for index, tag in enumerate(tags) if tag != "O"), 0)
        if type(word) is not int or not 0 <= word < len(tags):
            raise InputError(f"target must be the number of a word, 0 to {len(tags) - 1}, found {target!r}.")
        row = word
        if encoded.decoding is not None:  # several words read one row
            row = int(encoded.decoding[word])
            word = int(np.searchsorted(encoded.decoding, row))
        tag = self.label_ids[tags[word]]
        return f"{tags[word]} of {example.words[word]!r}", lambda scores: scores[:, row].softmax(1)[:, tag]

    def decode(
        self,
        outputs: Sequence[Outputs],
        examples: Sequence[TaggedExample],
        encoded: Sequence[EncodedExample],
    ) -> list[Prediction]:
        """Predictions with words, tags, their confidences, and the entities with their positions in words or
        characters.
        """
        lengths = tuple(len(output) for output in outputs)
        emissions = torch.from_numpy(
            np.concatenate([output.reshape(-1, len(self.labels)) for output in outputs])
        )
        if not self.settings.constrained:
            paths = emissions.argmax(1).numpy()
        else:
            scores = self._crf.scores() if self._crf is not None else legal_scores(self.labels)
            paths = viterbi(emissions, lengths, scores).numpy()
        if self._crf is not None:
            probabilities = self._crf.marginals(emissions, lengths).numpy()
        else:
            probabilities = self.label_probabilities(emissions.numpy())
        confidence = probabilities[np.arange(len(paths)), paths]
        ends = np.cumsum(lengths)[:-1]
        rows_of_words = [example.decoding for example in encoded] or [None] * len(outputs)
        predictions: list[Prediction] = []
        for example, path, row_confidence, rows in zip(
            examples, np.split(paths, ends), np.split(confidence, ends), rows_of_words, strict=True
        ):
            row_tags = [self.labels[index] for index in path]
            predictions.append(tagged_prediction(example, row_tags, row_confidence, rows, self._scheme))
        return predictions

    def decode_by_folds(
        self,
        outputs: Sequence[Outputs],
        examples: Sequence[TaggedExample],
        encoded: Sequence[EncodedExample],
        folds: Ints,
        bound: Mapping[int, Bound] = UNBOUND,
    ) -> list[Prediction]:
        """With a CRF, each fold is decoded with the transitions of the model that judged it."""
        if not self.settings.crf:
            return self.decode(outputs, examples, encoded)
        predictions: list[Prediction] = [{}] * len(outputs)
        for judge, fold, rows, own, _ in self._judges(folds, outputs, examples, encoded):
            judge._crf = ConditionalRandomField(self.labels)
            if fold in bound:
                learned = {name: torch.from_numpy(weights) for name, weights in bound[fold].items()}
                judge._crf.load_state_dict(learned)
            for row, prediction in zip(rows, judge.decode(*own), strict=True):
                predictions[row] = prediction
        return predictions

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[TaggedExample]) -> Metrics:
        """The metrics of `tag_metrics`: for entities precision, recall and F1, for other tags accuracy."""
        gold = [self._legal(example.tags or ()) for example in examples]
        predicted = [self.in_iob2(prediction["tags"]) for prediction in predictions]
        return tag_metrics(gold, predicted, self.entity_tags)

    def scorer(
        self, predictions: Sequence[Prediction], examples: Sequence[TaggedExample]
    ) -> Callable[[Ints], float]:
        if type(self).metrics is not Tagging.metrics:  # a metric that may not follow from counts
            return super().scorer(predictions, examples)
        counts = np.array(
            [
                tag_counts(
                    self._legal(example.tags or ()), self.in_iob2(prediction["tags"]), self.entity_tags
                )
                for example, prediction in zip(examples, predictions)
            ]
        )

        def score(rows: Ints) -> float:
            right, both = counts[rows].sum(0).tolist()
            return right / both if both else 0.0

        return score

    def error_analysis(
        self, predictions: Sequence[Prediction], examples: Sequence[TaggedExample]
    ) -> ErrorAnalysis:
        """Figures by label and confusion of entities or tags, and the confidence of each word's tag."""
        gold = [self._legal(example.tags or ()) for example in examples]
        tags = [self.in_iob2(prediction["tags"]) for prediction in predictions]
        return tag_errors(
            [example.words for example in examples],
            gold,
            tags,
            [prediction["confidence"] for prediction in predictions],
            entity_scores(gold, tags) if self.entity_tags else None,
        )

    def baselines(
        self, train: Sequence[TaggedExample], dev: Sequence[TaggedExample]
    ) -> dict[str, list[Prediction]]:
        """The most frequent tag for every word, and each word's own most frequent tag."""
        tags = [self._legal(example.tags or ()) for example in train]
        words = [example.words for example in dev]
        train_words = [example.words for example in train]
        baselines = majority_tag(tags, words), frequent_tags(train_words, tags, words)
        return {
            baseline.name: [{"tags": sentence_tags} for sentence_tags in baseline.predictions]
            for baseline in baselines
        }

    def line(self, example: TaggedExample, prediction: Prediction) -> dict[str, Any]:
        gold = {} if example.tags is None else {"gold": self._legal(example.tags)}
        text = {} if example.text is None else {"text": example.text}
        known = {} if example.id is None else {ID: example.id}
        return {**known, **text, **gold, **prediction}

    def state(self) -> dict[str, Any]:
        return super().state() | ({"syllables": True} if self._syllables else {})

    @classmethod
    def from_state(cls, state: Mapping[str, Any], where: str) -> Self:
        task = super().from_state(state, where)
        task._syllables = require_truth(state.get("syllables", False), "syllables", where)
        return task

    def _iob2_labels(self) -> set[str]:
        """The IOB2 tags of the labels' entities. Other schemes (IO, IOBES) write them with other letters, and
        if training had entities of one word only, the labels lack the I- tags of longer ones.
        """
        if not self.entity_tags:
            return set()
        tags = (self.in_iob2([label])[0] for label in self.labels)
        suffixes = {tag[1:] for tag in tags if tag != "O"}
        return {"O", *(letter + suffix for suffix in suffixes for letter in "BI")}

    def in_iob2(self, tags: Sequence[str]) -> list[str]:
        """The model's tags in IOB2 if they are entity tags; other tags as they are."""
        return self._scheme.in_iob2(tags)

    def _legal(self, tags: Sequence[str]) -> list[str]:
        """The tags of a labelled example: entity tags in IOB2, as files are read; other tags as they are."""
        return to_iob2(tags) if self.entity_tags and are_entity_tags(tags) else list(tags)


def _row_tags(tags: Sequence[str], rows: Ints) -> list[str]:
    """Tags of words (W,) -> tags of rows (R,), given each word's row. A row that several words share gets the
    first tag that isn't O.
    """
    row_tags = ["O"] * (int(rows[-1]) + 1)
    for tag, row in zip(tags, rows.tolist(), strict=True):
        if row_tags[row] == "O":
            row_tags[row] = tag
    return row_tags
