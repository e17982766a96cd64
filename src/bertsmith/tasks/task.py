"""The contract of a task: examples, head, loss, metric and decoding, in one file per task beside this one.

    labelled file → read → texts, encode → windows → encoder → head → loss → training
                                                                  ↘ outputs → calibrate, decode → metrics

One decoding serves evaluation, the command line and Python. E examples, R rows that the head reads.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field
from torch import Tensor, nn

from bertsmith.arrays import Floats, Ints
from bertsmith.errors import InputError, ModelError
from bertsmith.metrics.calibration import probabilities_of
from bertsmith.model.config import BertConfig
from bertsmith.tasks.evaluating.error_analysis import ErrorAnalysis
from bertsmith.tasks.examples.encoding import EncodedExample, Layout
from bertsmith.tasks.heads.pooling import Pooling, pool_examples
from bertsmith.tasks.losses.distillation import DistillationLoss, RowLoss
from bertsmith.tasks.saved_state import read_state
from bertsmith.text.files.values import as_category, as_label, is_blank
from bertsmith.text.labelled.label_names import look
from bertsmith.text.tokens.long_texts import Pieces
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.validation import UserSettings, check

Outputs = npt.NDArray[np.float32]  # of one example: (C,), or (R, C) where the head answers for each row
Prediction = Mapping[str, Any]  # what `predict` writes as a line of JSON
Metrics = dict[str, float]
Bound = Mapping[str, Outputs]  # weights of a head that decoding needs
UNBOUND: Mapping[int, Bound] = MappingProxyType({})  # of no fold
AnswerNumber = tuple[str, Callable[[Tensor], Tensor]]  # a name, and (S, …) outputs of a head -> (S,)
E = TypeVar("E", bound="TaskExample")

_SPECIAL_TOKENS = 2  # around a single text


class TaskExample(Protocol):
    """An example: whatever a task makes of a row. `where` is its file and line, for messages."""

    @property
    def where(self) -> str: ...


Labelled = TaskExample  # the name by which programs have known it


class TaskSettings(UserSettings):
    """What every task lets its user choose; a task adds its own.

    `max_length` counts tokens with special ones. Longer texts are cut, or with `stride` read as windows that
    overlap by so many tokens. `text`, `text_pair` and `label` are columns: names, or numbers counted from 1.
    `header`, `format` and `encoding` say how files are read.
    `of_model` are the settings that a trained model keeps: for another file they can't be changed.
    """

    of_model: ClassVar[frozenset[str]] = frozenset({"max_length", "stride"})
    max_length: int = Field(128, ge=8)
    stride: int | None = Field(None, ge=0)
    text: str | int | None = None
    text_pair: str | int | None = None
    label: str | int | None = None
    header: bool = True
    format: str | None = None
    encoding: str = "utf-8"

    @property
    def stride_problem(self) -> str | None:
        """What is wrong with a stride that somebody chose; None where nothing is."""
        room = self.max_length - _SPECIAL_TOKENS
        if self.stride is None or self.stride < room:
            return None
        return (
            f"stride = {self.stride}, but with max_length = {self.max_length} there is room for {room} "
            f"tokens of text: at most {room - 1} can be shared with the next."
        )


class Head(nn.Module):
    """What turns hidden states into outputs.

    architecture: which class of transformers has this head, without the family's name; None for a model
    that is saved as a bare encoder. pooled: reads the pooler's output instead of hidden states.
    per_row: answers for each row read, else for each example. reads_all: reads every row, whatever the
    examples were encoded for. joins: how the vectors of a text's parts become the text's, for a head that
    pools; then a text of any length is computed part by part, as it is by a head `per_row`. per_text: answers
    for each text of an example, which may have fewer than others.
    file_names: our module → its name in files; what is not named there has no place in transformers and is
    saved beside it. graph_outputs: the names of its outputs in an exported graph, a column of `outputs` each
    where there are several. pooling: how it pools all tokens, to a vector of length 1. text_vectors: pooling
    of a head that does nothing else, and whether its vectors have length 1.
    """

    architecture: str | None = None
    pooled: bool = False
    reads_all: bool = False
    per_row: ClassVar[bool] = False
    per_text: ClassVar[bool] = False
    joins: Pooling | None = None
    file_names: Mapping[str, str] = {}
    graph_outputs: ClassVar[tuple[str, ...]] = ("logits",)
    pooling: Pooling | None = None
    text_vectors: tuple[Pooling, bool] | None = None

    def forward(self, states: Tensor, layout: Layout) -> Tensor:
        """(R, H) -> (E, ...) or, `per_row`, (R, ...)."""
        raise NotImplementedError

    def features(self, states: Tensor, layout: Layout) -> Tensor:
        """(R, H) -> (E, F): what the last layer reads; the mean of the states unless said otherwise."""
        return pool_examples(states, layout, "mean")

    def answer_features(self, features: Tensor) -> Tensor | None:
        """(E, F) -> (E, C), for a head that is linear in its `features`; None for others."""
        return None

    def outputs(self, states: Tensor) -> Tensor:
        """(…, H) -> (…, C): what `forward` makes of the states that it reads, or has pooled, of single
        windows. By torch's own operations alone: a graph is made of it.
        """
        raise NotImplementedError

    def refuse_graph(self, task: str) -> None:
        """Raises ModelError for a head that a graph can't have, with the `task`'s name."""
        if type(self).outputs is Head.outputs and self.text_vectors is None:
            raise ModelError(
                f"The head {type(self).__name__} of the task {task} can't be exported: it doesn't say what "
                "it makes of single windows (outputs)."
            )

    def pool(self, states: Tensor, layout: Layout) -> Tensor:
        """(R, H) -> (T, H): each text of the examples by itself, for a head that `joins`."""
        raise NotImplementedError

    def answer(self, pooled: Tensor, layout: Layout) -> Tensor:
        """(T, H) -> (E, ...): what `forward` makes of what `pool` gives."""
        raise NotImplementedError

    def finish(self) -> None:
        """Called once when training is over, before the head is used and saved."""

    def taken_over(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """What a student's new head begins with of its teacher's tensors that fit into it."""
        return tensors


class Task(ABC, Generic[E]):
    """One use of BERT. A subclass is found by its module's name, or given as `package.module:Class`.

    What decides a prediction beside the weights (settings, labels, thresholds) is `state`, which a checkpoint
    keeps; a task made `from_state` decodes as the one that was trained.
    """

    name: ClassVar[str]
    main_metric: ClassVar[str]  # what chooses the best of several: more is better
    is_pretokenized: ClassVar[bool] = False  # `texts` are the words of one sentence
    baselines_learn: ClassVar[bool] = True  # from training examples: without any there are no baselines
    student_settings: ClassVar[Mapping[str, Any]] = MappingProxyType({})  # that a student always has
    answers_are_labels: ClassVar[bool] = False  # a model's answer can stand for an example's label
    has_probabilities: ClassVar[bool] = False  # of each label: `label_probabilities`
    activation: ClassVar[str | None] = (
        None  # what makes probabilities of outputs: softmax, sigmoid; None, numbers
    )
    decided: ClassVar[tuple[str, ...]] = ()  # keys of a prediction that are a decision, the same or another
    learns_unlabelled: ClassVar[bool] = False  # from texts without labels too
    is_linear: ClassVar[bool] = (
        False  # its head is linear in features: a linear model of frozen ones is a method
    )
    needs_training: ClassVar[bool] = False  # training all weights gains far more than a linear model reaches
    makes_vectors: ClassVar[bool] = False  # its model is one of vectors, for sentence-transformers too
    teachings: Sequence[str] = ()  # ways to teach the encoder before it has its head: contrastive, cloze
    columns: Any = None  # what training showed of the columns beside the text, where there are any
    gives_score: ClassVar[bool] = False  # a prediction's "score" is a number
    relevance: ClassVar[str | None] = None  # what of a prediction for a pair ranks documents: score, or label
    bounds: tuple[float, float] | None = None  # of the numbers that it gives; None where nobody knows
    is_trained = False  # made `from_state`: what divided the training file, another file needn't have
    named_columns: Mapping[str, str] = MappingProxyType({})  # of those given by number, by their settings
    Settings: ClassVar[type[TaskSettings]] = TaskSettings

    def __init__(self, settings: TaskSettings, labels: Sequence[str] = ()) -> None:
        self.settings, self.labels = settings, tuple(labels)
        self.left_out: list[str] = []  # what reading left out, or may have misread, in sentences for the user

    @property
    def reads_pairs(self) -> bool | None:
        """Whether an example is two texts; None where nobody knows."""
        return False

    @property
    def features(self) -> Sequence[Any]:
        """The columns of a table that are read beside the text."""
        return ()

    @property
    def temperature(self) -> float:
        """What outputs are divided by before they become probabilities."""
        return 1.0

    def probabilities(self, outputs: Outputs) -> Floats | None:
        """(…, C) -> (…, C) what the outputs say by `activation`; None where they are numbers."""
        if self.activation is None:
            return None
        return probabilities_of(outputs, self.temperature, multi_label=self.activation == "sigmoid")

    @property
    def labels(self) -> tuple[str, ...]:
        """What the head tells apart, in the order of its outputs; `label_ids` has their numbers."""
        return self._labels

    @labels.setter
    def labels(self, names: tuple[str, ...]) -> None:
        self._labels = tuple(names)
        self.label_ids = {name: number for number, name in enumerate(self._labels)}
        self._by_category = {as_category(name): name for name in self._labels}

    # -- data ----------------------------------------------------------------------------------------------

    @abstractmethod
    def example(self, text: Any, where: str = "the input") -> E:
        """An unlabelled example from what Python gives: a text, a pair of texts, words."""

    @abstractmethod
    def read(self, path: Path | str, *, labelled: bool = True) -> list[E]:
        """Rows of a file as examples. Raises InputError naming file and line."""

    def read_files(self, paths: Sequence[Path | str]) -> list[E]:
        """Labelled rows of several files, as of one."""
        return [example for path in paths for example in self.read(path)]

    def fit(self, train: Sequence[E]) -> None:
        """Sets `labels` from the training examples. Raises InputError when nothing can be learnt of them."""

    def check(self, examples: Sequence[E]) -> None:
        """Raises InputError, naming file and line, for a label that training never showed."""

    def as_own_label(self, value: Any, where: str) -> str:
        """The label that a cell names; one that the model has under another spelling ("true", "1.0"), as
        models of other libraries may, is the model's. Raises InputError for what is no label.
        """
        label = as_label(value, where)
        return label if label in self.label_ids else self._by_category.get(label, label)

    def require_known(self, label: str, where: str, kind: str = "label") -> None:
        """Raises InputError for a label, of whatever kind, that training never showed."""
        if label not in self.label_ids:
            meant = next((name for name in self.labels if look(name) == look(label)), None)
            advice = (
                f"Is {meant!r} meant?" if meant else "Add training rows that have it, or remove this one."
            )
            raise InputError(
                f"{where}: the {kind} {label!r} does not occur in the training data, which has "
                f"{some_of(self.labels)}. {advice}"
            )

    def warnings(self, examples: Sequence[E]) -> list[str]:
        """Sentences on what reading had to change about labelled examples."""
        return []

    def label_warnings(self, counts: Mapping[str, int]) -> list[str]:
        """Sentences on labels of the training rows, and how often they occur, that may be no labels of this
        task.
        """
        return []

    def check_alone(self, train: Sequence[E]) -> None:
        """Raises RecipeError where rows teach nothing in batches of one."""

    def has_text(self, example: E) -> bool:
        """Whether none of its texts is blank: such an example has no answer."""
        return not any(map(is_blank, self.texts(example)))

    def complete(self, examples: list[E], gaps: Sequence[str], path: Path | str) -> list[E]:
        """The labelled examples of a file without those that have `gaps`: each what it lacks, text or label,
        and "" where nothing. `left_out` gets a sentence on them. Raises InputError where the settings don't
        say that they are to be dropped, and where none remains.
        """
        lacking = Counter(filter(None, gaps))
        if not lacking:
            return examples
        first = {gap: example.where for gap, example in reversed([*zip(gaps, examples, strict=True)]) if gap}
        for gap, count in lacking.items():
            if count == len(examples):
                raise InputError(f"Every {gap} is empty, from {first[gap]} on. Is --{gap} the right column?")
        counted = " and ".join(
            f"{count:,} {'has' if count == 1 else 'have'} no {gap} (the first: {place})"
            for gap, count in lacking.items()
            for _, _, place in [first[gap].rpartition(", ")]
        )
        sentence = f"{path}: of {len(examples):,} rows {counted}"
        labels = (
            getattr(each, "label", None) for gap, each in zip(gaps, examples, strict=True) if gap == "label"
        )
        if named := sorted({str(label) for label in labels if label is not None}):
            sentence += f" ({' and '.join(map(repr, named))} says that: a class needs another name)"
        if getattr(self.settings, "missing", "refuse") != "drop":
            keep = ", or --missing keep to take blank texts as they are" if "text" in lacking else ""
            raise InputError(f"{sentence}. Mend them, or give --missing drop to leave them out{keep}.")
        kept = [example for example, gap in zip(examples, gaps, strict=True) if not gap]
        if not kept:
            raise InputError(
                f"{sentence}: none remains. Are {' and '.join(f'--{gap}' for gap in lacking)} right?"
            )
        self.left_out.append(f"{sentence}: they were left out")
        return kept

    def remarks(self) -> dict[str, str]:
        """How the labelled files were understood, by what is said of them."""
        return {}

    def labels_of(self, example: E) -> Collection[str]:
        """The labels that a labelled example has, where there are classes or tags: each of them keeps
        examples to learn from when a dev part is held out.
        """
        return ()

    def group_key(self, example: E) -> Sequence[str]:
        """Examples that have these texts in common are never divided between train and dev: those of one
        group, where the file says which, else those of equal texts.
        """
        group = getattr(example, "group", None)
        return self.texts(example) if group is None else (group,)

    @property
    def optional_group(self) -> str | None:
        """The column of groups, where a file may lack it; None where it must have one, or none is named."""
        group = getattr(self.settings, "group", None)
        return group if self.is_trained and isinstance(group, str) and not group.isdecimal() else None

    def tell_lost_groups(self, examples: Sequence[E], path: Path | str) -> None:
        """`left_out` gets a sentence where no labelled example of a file has the optional group."""
        if self.optional_group and all(getattr(example, "group", None) is None for example in examples):
            self.left_out.append(
                f"{path} has no {self.optional_group!r}, by which rows of one source were kept together in "
                "training: none are here"
            )

    @abstractmethod
    def texts(self, example: E) -> Sequence[str]:
        """What is to be tokenised of an example."""

    @abstractmethod
    def encode(self, example: E, pieces: Sequence[Pieces], tokenizer: Tokenizer) -> EncodedExample:
        """The tokenised `texts` as windows of at most `max_length` tokens, and the target."""

    # -- model ---------------------------------------------------------------------------------------------

    @abstractmethod
    def head(self, config: BertConfig) -> Head:
        """A new head for an encoder of this shape."""

    def bind(self, head: Head) -> None:
        """The head in use, for a task whose loss and decoding need its weights (a CRF's transitions)."""

    def bound_weights(self) -> Bound:
        """What `bind` took of the head for decoding, by name; nothing where the outputs say all."""
        return {}

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Sequence[Any]) -> Tensor:
        """The head's outputs against the examples' targets, summed; the run divides by `count`."""

    @property
    def needs_global_batch(self) -> bool:
        """Whether the loss compares the examples of a batch with each other: then `losses` gives it."""
        return False

    def losses(self, outputs: Tensor, targets: Sequence[Any]) -> Tensor:
        """(E,) each example's part of the summed loss of a whole batch. Outputs (E, C, …) may end in zeros
        where the examples of another micro-batch have more rows.
        """
        raise NotImplementedError

    def make_batches(self, targets: Sequence[Any], order: Ints, batch_size: int) -> list[Ints]:
        """An epoch's examples, in the `order` drawn for it, as batches; the same for the same order."""
        return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]

    def count(self, targets: Sequence[Any]) -> float:
        """What the summed loss of these targets is divided by."""
        return len(targets)

    # -- teacher and student -------------------------------------------------------------------------------

    def distillation_loss(self, temperature: float, head: Head) -> DistillationLoss:
        """How far a student's outputs are from its teachers': the squared differences of numbers, unless the
        task knows better what its outputs say.
        """
        return RowLoss() if head.per_row else DistillationLoss()

    def as_teacher(self) -> "Task[E]":
        """The task with a head whose outputs say most to a student; the weights are the same."""
        return self

    def teach(self, outputs: Sequence[Outputs]) -> list[Outputs]:
        """What a student learns of a teacher's outputs, each (C,), (R, C) or (T, H), by the bound head."""
        return list(outputs)

    def as_student(self, settings: Mapping[str, Any]) -> Self:
        """The teacher's task with other settings, not yet calibrated."""
        state = self.state()
        state["settings"] = state["settings"] | dict(settings) | dict(self.student_settings)
        uncalibrated = {name: None for name in ("confidence", "threshold") if name in state}
        return type(self).from_state(state | uncalibrated, "the teacher")

    def average(
        self, teachers: Sequence["Task[E]"], outputs: Sequence[Sequence[Outputs]]
    ) -> Sequence[Sequence[Outputs]] | None:
        """Takes the mean of several teachers' thresholds. Where their `outputs` have to be brought to one
        scale before their own mean, which is decoded by it: these; None where what is learned is decoded.
        """
        return None

    def begin_student(self, answers: Sequence[Outputs]) -> None:
        """What a new head begins with, by the answers: the unit of numbers, how often labels hold."""

    def as_label(self, example: E, prediction: Prediction) -> E:
        """The example with a model's answer for its label, where `answers_are_labels`."""
        raise NotImplementedError

    def check_taught(self, labelled: Sequence[E]) -> None:
        """Raises InputError for labels that can't be learned beside a teacher's answers: those which it can't
        give, numbers on another scale.
        """

    def know_labelled(self, labelled: Sequence[E]) -> None:
        """Sees a student's labelled examples before they are encoded: of which documents each query has, and
        so are no negatives of it.
        """

    def answer_of(self, probabilities: Sequence[float]) -> Outputs | None:
        """(C,) what a head would say for these probabilities of the labels, which a file may have; None where
        the label is all that is learned of it.
        """
        return None

    def identity(self, example: E) -> Sequence[str]:
        """The texts that make an unlabelled example another one's copy."""
        return self.texts(example)

    def spellings(self, text: str) -> Iterator[str]:
        """Other ways in which the task reads a text, whose pieces a pruned vocabulary has to keep."""
        return iter(())

    def for_file(self, path: Path, columns: Mapping[str, Any]) -> Self:
        """The task as it reads a file that needn't be laid out as those that it was trained on, from these
        columns. Raises RecipeError for a name or value that is none.
        """
        other = copy(self)
        settings = self.settings.model_dump() | dict(columns)
        other.settings = check(type(self.settings), settings, "the given columns")
        return other

    @property
    def compares_vectors(self) -> bool:
        """Whether the encoder answers without a head that has weights: by the cosine of two texts."""
        return False

    @property
    def fits_static_table(self) -> bool:
        """Whether a static table of word vectors with a linear head can stand for the model."""
        return False

    # -- rows to label -------------------------------------------------------------------------------------

    separator = ","  # what stands between several labels in a file

    def read_partly_labelled(self, path: Path | str, *, needs_label: bool = False) -> list[E]:
        """Rows of which some have a label. Raises InputError for a task that reads no such files."""
        raise InputError(f"A task that reads rows of texts is needed; {self.name} doesn't.")

    def label_probabilities(self, outputs: Outputs) -> Floats:
        """(E, …) -> (E, C), each label's, where the task `has_probabilities`."""
        probabilities = self.probabilities(outputs)
        assert probabilities is not None
        return probabilities

    def likeliest(self, probabilities: Floats) -> tuple[Floats, Floats]:
        """(E, C) -> (E, C) 1 for the labels that an example would get, and (E,) how sure they are."""
        given = np.asarray(np.eye(probabilities.shape[1])[probabilities.argmax(1)])
        return given, np.asarray(probabilities.max(1))

    # -- as a graph ----------------------------------------------------------------------------------------

    def decoding(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """What a program without Bertsmith needs to decode the outputs of a graph, beside labels and
        `activation`: the keys of decoding.json.
        """
        return {}

    def outputs_of_vectors(self, vectors: Outputs) -> Outputs:
        """(T, H), a graph's of each text of an example, which it reads one by one -> the head's outputs."""
        return vectors

    def change_of(self, ours: Outputs, theirs: Outputs, decoding: "Task[E]", spread: float) -> float:
        """How much a graph's outputs for a window, which `decoding` decodes, differ from the model's: the
        largest difference of a probability, or of a number in units of `spread`.
        """
        first, second = self.probabilities(ours), decoding.probabilities(theirs)
        if first is None or second is None:
            first, second = ours.astype(np.float64), theirs.astype(np.float64)
            return float(np.abs(second - first).max(initial=0.0)) / spread
        return float(np.abs(second - first).max(initial=0.0))

    def recalibrated(self, own: Sequence[Outputs], others: Sequence[Outputs]) -> Self:
        """The task that decodes a graph whose outputs are not quite the model's own: with a temperature that
        brings its probabilities nearest to the model's.
        """
        return self

    def calibration_error(self, outputs: Sequence[Outputs], targets: Sequence[Any]) -> float | None:
        """How far confidence is from the share that is right; None for a task without a confidence."""
        return None

    # -- looking inside ------------------------------------------------------------------------------------

    def answer_number(
        self, example: E, encoded: EncodedExample, outputs: Outputs, target: str | int | None
    ) -> AnswerNumber:
        """What is explained of an answer: its name, and the function that makes of the head's outputs for S
        copies of the example one number each, which has a gradient: how sure the model is, or the number that
        it gives. `outputs` are those for the example as it is: (1, C), (1, T, H) or (R, C). `target` names
        another class, or a word; None is what the model answers. Raises InputError for what isn't there.
        """
        raise InputError(
            f"The answers of a model for {self.name} can't be explained: its task doesn't say which number "
            "stands for an answer (answer_number)."
        )

    def refuse_target(self, target: str | int | None) -> None:
        """Raises InputError for a target where there is one answer."""
        if target is not None:
            raise InputError(
                f"target: a model for {self.name} answers one thing, found {target!r}. Leave target out."
            )

    def label_number(self, outputs: Outputs, target: str | int | None) -> int:
        """Of the label that `target` names; of the likeliest by outputs (C,) where it is None. Raises
        InputError for a name of none.
        """
        label = self.labels[int(outputs.argmax())] if target is None else str(target)
        if label not in self.label_ids:
            raise InputError(f"target: there is no class {label!r}. There are: {', '.join(self.labels[:8])}.")
        return self.label_ids[label]

    # -- predictions ---------------------------------------------------------------------------------------

    def calibrate(
        self, outputs: Sequence[Outputs], examples: Sequence[E], encoded: Sequence[EncodedExample]
    ) -> Metrics:
        """Chooses temperature and thresholds on dev; returns the figures of that choice."""
        return {}

    @abstractmethod
    def decode(
        self, outputs: Sequence[Outputs], examples: Sequence[E], encoded: Sequence[EncodedExample]
    ) -> list[Prediction]:
        """The head's outputs as predictions, one for each example."""

    def uncalibrate(self) -> None:
        """Forgets the confidence that `calibrate` chose: another model's is another."""

    def decode_by_folds(
        self,
        outputs: Sequence[Outputs],
        examples: Sequence[E],
        encoded: Sequence[EncodedExample],
        folds: Ints,
        bound: Mapping[int, Bound] = UNBOUND,
    ) -> list[Prediction]:
        """The same where the examples judge in turn, each in one of the `folds` (E,). An answer that depends
        on what `calibrate` chooses is by a choice of the other folds: by its own a score would flatter.
        `bound` are the `bound_weights` of each fold's model; a fold that has none was judged by a new head's.
        """
        return self.decode(outputs, examples, encoded)

    def _judges(
        self, folds: Ints, *of_examples: Sequence[Any]
    ) -> Iterator[tuple[Self, int, list[int], list[Any], list[Any]]]:
        """For each fold a copy of the task to judge it, its number, the numbers of its examples, and what
        `of_examples` has of them and of all others.
        """
        for fold in sorted(set(folds.tolist())):
            own, others = np.flatnonzero(folds == fold).tolist(), np.flatnonzero(folds != fold).tolist()
            parts = [[[example[row] for row in rows] for example in of_examples] for rows in (own, others)]
            yield copy(self), fold, own, *parts

    @abstractmethod
    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[E]) -> Metrics:
        """The field's standard metrics of predictions for labelled examples."""

    def scorer(self, predictions: Sequence[Prediction], examples: Sequence[E]) -> Callable[[Ints], float]:
        """The main metric of some of the examples, given their numbers (n,), which may repeat. A bootstrap
        asks hundreds of times: a task whose metric follows from counts takes those of each example once.
        """

        def score(rows: Ints) -> float:
            numbers = rows.tolist()
            some = [predictions[number] for number in numbers]
            return self.metrics(some, [examples[number] for number in numbers])[self.main_metric]

        return score

    def error_analysis(self, predictions: Sequence[Prediction], examples: Sequence[E]) -> ErrorAnalysis:
        """What the report shows beside the metrics, of labelled examples: as much as makes sense."""
        return ErrorAnalysis()

    def line(self, example: E, prediction: Prediction) -> dict[str, Any]:
        """One row of a predictions file: the example, the right answer where it is known, the prediction."""
        return {"where": example.where, **prediction}

    def baselines(self, train: Sequence[E], dev: Sequence[E]) -> dict[str, list[Prediction]]:
        """What is to be beaten: predictions for `dev` by name, the most frequent answer first."""
        return {}

    # -- state ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that decoding needs beside the weights, as JSON. A column has the name that it has in
        the training files: in others its number may be another's.
        """
        settings = self.settings.model_dump(mode="json") | dict(self.named_columns)
        return {"settings": settings, "labels": list(self.labels)}

    def write_extra_files(self, folder: Path, config: BertConfig) -> None:
        """More files for the folder of a saved model, where other tools expect them."""

    @classmethod
    def from_state(cls, state: Mapping[str, Any], where: str) -> Self:
        """The inverse of `state`. Raises ModelError when the file `where` it comes from was altered."""
        task = cls(*read_state(state, cls.Settings, where))
        task.is_trained = True
        return task

    def config_labels(self) -> dict[str, Any]:
        """What transformers wants to know of labels, for config.json."""
        names = {str(number): name for number, name in enumerate(self.labels)}
        return {"id2label": names, "label2id": dict(self.label_ids)}


def fitted_again(task: Task[Any], train: Sequence[Any]) -> Task[Any]:
    """A copy, as these rows alone teach it: the unit of its numbers, the weights of its classes. What it
    knows of columns beside the text stays, and all of it where the rows lack one of its labels or teach
    nothing.
    """
    as_it_is, found = reading_columns(task, {}), reading_columns(task, {})
    try:
        found.fit(train)
    except InputError:
        return as_it_is
    if found.labels != task.labels:
        return as_it_is
    found.columns = task.columns
    return found


def some_of(labels: Sequence[str]) -> str:
    """The first few, for messages."""
    return ", ".join(labels[:8]) + (f" and {len(labels) - 8} more" if len(labels) > 8 else "")


def reading_columns(task: Task[Any], columns: Mapping[str, Any]) -> Task[Any]:
    """The task with other columns to read from; None leaves one as it was. Raises RecipeError for a name or
    value that is none.
    """
    given = {name: value for name, value in columns.items() if value is not None}
    settings = check(type(task.settings), task.settings.model_dump() | given, "the given columns")
    state = task.state() | {"settings": settings.model_dump(mode="json")}
    return type(task).from_state(state, "the given columns")
