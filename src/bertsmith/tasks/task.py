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
from bertsmith.tasks.heads.pooling import Pooling, Projection, pool_examples
from bertsmith.tasks.losses.distillation import DistillationLoss, RowLoss
from bertsmith.tasks.saved_state import read_state
from bertsmith.text.files.values import as_category, as_label, is_blank
from bertsmith.text.labelled.label_names import label_appearance
from bertsmith.text.tokens.long_texts import TextEncoding
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.validation import UserSettings, check

Outputs = npt.NDArray[np.float32]  # of one example: (C,), or (R, C) where the head answers for each row
Prediction = Mapping[str, Any]  # what `predict` writes as a line of JSON
Metrics = dict[str, float]
Bound = Mapping[str, Outputs]  # weights of a head that decoding needs
UNBOUND: Mapping[int, Bound] = MappingProxyType({})  # no fold has bound weights
AnswerNumber = tuple[str, Callable[[Tensor], Tensor]]  # a name, and (S, …) outputs of a head -> (S,)
E = TypeVar("E", bound="TaskExample")

_SPECIAL_TOKENS = 2  # around a single text


class TaskExample(Protocol):
    """An example: whatever a task makes of one row. `where` is the row's file and line, for messages."""

    @property
    def where(self) -> str: ...


Labelled = TaskExample  # the name by which programs have known it


class TaskSettings(UserSettings):
    """Settings that every task has; a task's own class adds more.

    `max_length` counts tokens, special ones included. A longer text is cut or, with `stride`, read as windows
    that overlap by that many tokens. `text`, `text_pair` and `label` are columns: names, or numbers counted
    from 1. `header`, `format` and `encoding` say how files are read. `of_model` names the settings that
    belong to a trained model: they can't be changed for another file.
    """

    of_model: ClassVar[frozenset[str]] = frozenset({"max_length", "stride"})
    max_length: int = Field(128, ge=8)
    """Tokens of a text or a window, special ones included."""
    stride: int | None = Field(None, ge=0)
    """Tokens that two windows share; by default long texts are cut."""
    text: str | int | None = None
    """Column of the text, `--text`."""
    text_pair: str | int | None = None
    """Column of the second text, `--text-pair`."""
    label: str | int | None = None
    """Column of the label, `--label`."""
    header: bool = True
    """Whether the first row names the columns, `--no-header`."""
    format: str | None = None
    """Format of the files, `--format`."""
    encoding: str = "utf-8"
    """Encoding of the files, such as latin-1; `--encoding` of `predict` and `evaluate`."""

    @property
    def stride_problem(self) -> str | None:
        """A sentence on what is wrong with the chosen stride; None if it is fine."""
        room = self.max_length - _SPECIAL_TOKENS
        if self.stride is None or self.stride < room:
            return None
        return (
            f"stride = {self.stride}, but with max_length = {self.max_length} there is room for {room} "
            f"tokens of text: at most {room - 1} can be shared with the next."
        )


class Head(nn.Module):
    """Turns hidden states into outputs. R rows, E examples, T texts, H hidden size, C outputs, F features. A
    row is a hidden state that the head reads: of a window's first token, a word's first token, or any token.

    architecture: the class of transformers that has this head, without the family's name; None for a model
    that is saved as a bare encoder. pooled: the head reads the pooler's output instead of hidden states.
    per_row: it has an output for each row, otherwise one for each example. reads_all: it reads every token,
    whichever rows the examples were encoded for. joins: how a pooling head combines the vectors of a text's
    parts, so that a text of any length can be computed part by part (as with a head that is `per_row`); "cls"
    takes their mean. per_text: it has an output for each text of an example; examples may have different
    numbers of texts. file_names: our module → its name in files; a module that isn't listed has no
    counterpart in transformers and is saved in a file of its own. graph_outputs: the names of the outputs of
    an exported graph; if there are several, each is a column of `outputs`. pooling: how all tokens are pooled
    to a vector of length 1. text_vectors: for a head that only pools, its pooling and whether its vectors
    have length 1. projection: the layers between such a vector and its final length.
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
    projection: Projection | None

    def __init__(self) -> None:
        super().__init__()
        self.projection = None

    def forward(self, states: Tensor, layout: Layout) -> Tensor:
        """(R, H) -> (E, ...) or, `per_row`, (R, ...)."""
        raise NotImplementedError

    def features(self, states: Tensor, layout: Layout) -> Tensor:
        """(R, H) -> (E, F), the input of the last layer, which a linear model could be fitted to; a text's
        and its columns'. By default the mean of the hidden states.
        """
        return pool_examples(states, layout, "mean")

    def answer_features(self, features: Tensor) -> Tensor | None:
        """(E, F) -> (E, C): the outputs for `features` that were computed earlier, if the head is linear in
        them, otherwise None. Doubtful labels are found by it without another pass of the encoder.
        """
        return None

    def outputs(self, states: Tensor) -> Tensor:
        """(…, H) -> (…, C): `forward` for an exported graph, which has no layout: the outputs for states of
        single windows, as `forward` reads or pools them. Use only torch's own operations, and no dropout.
        """
        raise NotImplementedError

    def refuse_graph(self, task: str) -> None:
        """Raises ModelError, naming `task`, only if the head can't be exported as a graph."""
        if type(self).outputs is Head.outputs and self.text_vectors is None:
            raise ModelError(
                f"The head {type(self).__name__} of the task {task} can't be exported: it doesn't say what "
                "it makes of single windows (outputs)."
            )

    def pool(self, states: Tensor, layout: Layout) -> Tensor:
        """(R, H) -> (T, H): one vector for each text of the examples. Only for a head that sets `joins`."""
        raise NotImplementedError

    def answer(self, pooled: Tensor, layout: Layout) -> Tensor:
        """(T, H) -> (E, ...): the second half of `forward`, from the vectors that `pool` returns. For a long
        text they are joined from vectors of its parts.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Called once after training, before the head is used and saved."""

    def taken_over(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Chooses which of its teacher's fitting tensors a student's new head starts from: all of them by
        default.
        """
        return tensors


class Task(ABC, Generic[E]):
    """One use of BERT. A subclass is found by its module's name, or given as `package.module:Class`.

    Whatever decides a prediction besides the weights (settings, labels, thresholds) is the `state`, which a
    checkpoint keeps: a task made by `from_state` decodes like the one that was trained.
    """

    name: ClassVar[str]
    main_metric: ClassVar[str]  # chooses the best of several models: higher is better
    is_pretokenized: ClassVar[bool] = False  # `texts` are the words of one sentence
    baselines_learn: ClassVar[bool] = True  # baselines need training examples
    student_settings: ClassVar[Mapping[str, Any]] = MappingProxyType({})  # every student has these
    answers_are_labels: ClassVar[bool] = False  # a model's prediction can serve as an example's label
    has_probabilities: ClassVar[bool] = False  # `label_probabilities` gives one for each label
    activation: ClassVar[str | None] = None  # turns outputs into probabilities; None: outputs are numbers
    decided: ClassVar[tuple[str, ...]] = ()  # keys of a prediction that are decisions, not numbers
    learns_unlabelled: ClassVar[bool] = False  # can also learn from texts without labels
    is_linear: ClassVar[bool] = False  # the head is linear in its features, so a linear probe is a method
    needs_training: ClassVar[bool] = False  # training all weights gains far more than a linear model reaches
    makes_vectors: ClassVar[bool] = False  # the model embeds texts, for sentence-transformers too
    projection: Projection | None = None  # of pooled texts to vectors, as training begins
    trained_projection: Projection | None = None  # that of the bound head
    teachings: Sequence[str] = ()  # ways to train the encoder before it gets its head: contrastive, cloze
    columns: Any = None  # the fitted columns beside the text, if there are any
    gives_score: ClassVar[bool] = False  # a prediction's "score" is a number
    relevance: ClassVar[str | None] = None  # the key of a pair's prediction that ranks documents
    bounds: tuple[float, float] | None = None  # of the predicted numbers; None if unknown
    is_trained = False  # made by `from_state`: files may lack a group, or retrieval its label,
    given_columns: Collection[str] = ()  # unless these settings were given for the very file
    named_columns: Mapping[str, str] = MappingProxyType({})  # setting → name of a column given by number
    Settings: ClassVar[type[TaskSettings]] = TaskSettings

    def __init__(self, settings: TaskSettings, labels: Sequence[str] = ()) -> None:
        self.settings, self.labels = settings, tuple(labels)
        self.left_out: list[str] = []  # sentences for the user on rows left out or perhaps misread

    def draw_texts(self, path: Path, most: int) -> tuple[list[E], int]:
        """Reads texts without labels, each once, at most `most` of them, drawn at random, always the same
        ones, in their order. Returns them and how many there are, copies included if some weren't drawn.
        """
        raise NotImplementedError  # of tasks that learn from unlabelled texts

    @property
    def learns_names(self) -> bool:
        """Whether the names of labels can be learned from, as if they were texts."""
        return False

    @property
    def reads_pairs(self) -> bool | None:
        """Whether an example is two texts; None if that isn't known."""
        return False

    @property
    def features(self) -> Sequence[Any]:
        """The table columns that are read in addition to the text."""
        return ()

    @property
    def column_kinds(self) -> Sequence[Any]:
        """The kinds of these columns, as fitted or as named; None for one that is yet to be guessed."""
        return [column.kind for column in (self.features if self.columns is None else self.columns.columns)]

    @property
    def temperature(self) -> float:
        """The number by which outputs are divided before they become probabilities."""
        return 1.0

    def probabilities(self, outputs: Outputs) -> Floats | None:
        """Probabilities (…, C) of outputs (…, C) by `activation`; None if the outputs are plain numbers."""
        if self.activation is None:
            return None
        return probabilities_of(outputs, self.temperature, multi_label=self.activation == "sigmoid")

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels in the order of the head's outputs; `label_ids` maps each to its index."""
        return self._labels

    @labels.setter
    def labels(self, names: tuple[str, ...]) -> None:
        self._labels = tuple(names)
        self.label_ids = {name: index for index, name in enumerate(self._labels)}
        self._by_category = {as_category(name): name for name in self._labels}

    # -- data ----------------------------------------------------------------------------------------------

    @abstractmethod
    def example(self, text: Any, where: str = "the input") -> E:
        """An unlabelled example from a Python value: a text, a pair of texts, or words."""

    @abstractmethod
    def read(self, path: Path | str, *, labelled: bool = True) -> list[E]:
        """Reads the rows of a file as examples. Raises InputError naming file and line."""

    def read_files(self, paths: Sequence[Path | str]) -> list[E]:
        """Reads the labelled rows of several files as one list."""
        return [example for path in paths for example in self.read(path)]

    def fit(self, train: Sequence[E]) -> None:
        """Sets `labels` from the training examples. Raises InputError if nothing can be learned from them."""

    def check(self, examples: Sequence[E]) -> None:
        """Raises InputError, naming file and line, for a label that can't be judged: in most tasks, one that
        the training data doesn't have.
        """

    def as_own_label(self, value: Any, where: str) -> str:
        """The label in a cell. If the model has it under another spelling ("true", "1.0"), as models of other
        libraries may, the model's spelling is returned. Raises InputError for a value that is no label.
        """
        label = as_label(value, where)
        return label if label in self.label_ids else self._by_category.get(label, label)

    def require_known(self, label: str, where: str, kind: str = "label") -> None:
        """Raises InputError for a label that the training data doesn't have. `kind` is the word for it in the
        message.
        """
        if label not in self.label_ids:
            meant = next(
                (name for name in self.labels if label_appearance(name) == label_appearance(label)), None
            )
            advice = (
                f"Is {meant!r} meant?" if meant else "Add training rows that have it, or remove this one."
            )
            raise InputError(
                f"{where}: the {kind} {label!r} does not occur in the training data, which has "
                f"{some_of(self.labels)}. {advice}"
            )

    def warnings(self, examples: Sequence[E]) -> list[str]:
        """Sentences on what reading had to change in labelled examples."""
        return []

    def label_warnings(self, counts: Mapping[str, int]) -> list[str]:
        """Sentences on training labels that may not be labels of this task. `counts` is how often each
        occurs.
        """
        return []

    def check_alone(self, train: Sequence[E]) -> None:
        """Raises RecipeError if rows teach nothing in batches of one."""

    def has_text(self, example: E) -> bool:
        """Whether none of the example's texts is blank: an example with a blank one gets no prediction."""
        return not any(map(is_blank, self.texts(example)))

    def complete(self, examples: list[E], gaps: Sequence[str], path: Path | str) -> list[E]:
        """Drops the labelled examples of a file that lack something. `gaps` has, for each example, "text" or
        "label" for what is missing, and "" if nothing is. `left_out` gets a sentence on the dropped rows.
        Raises InputError if the settings don't allow dropping, or if no row remains.
        """
        gap_counts = Counter(filter(None, gaps))
        if not gap_counts:
            return examples
        first = {gap: example.where for gap, example in reversed([*zip(gaps, examples, strict=True)]) if gap}
        for gap, count in gap_counts.items():
            if count == len(examples):
                raise InputError(f"Every {gap} is empty, from {first[gap]} on. Is --{gap} the right column?")
        counted = " and ".join(
            f"{count:,} {'has' if count == 1 else 'have'} no {gap} (the first: {line})"
            for gap, count in gap_counts.items()
            for _, _, line in [first[gap].rpartition(", ")]
        )
        sentence = f"{path}: of {len(examples):,} rows {counted}"
        labels = (
            getattr(example, "label", None)
            for gap, example in zip(gaps, examples, strict=True)
            if gap == "label"
        )
        if named := sorted({str(label) for label in labels if label is not None}):
            sentence += f" ({' and '.join(map(repr, named))} says that: a class needs another name)"
        if getattr(self.settings, "missing", "refuse") != "drop":
            keep = ", or --missing keep to take blank texts as they are" if "text" in gap_counts else ""
            raise InputError(f"{sentence}. Mend them, or give --missing drop to leave them out{keep}.")
        complete_examples = [example for example, gap in zip(examples, gaps, strict=True) if not gap]
        if not complete_examples:
            raise InputError(
                f"{sentence}: none remains. Are {' and '.join(f'--{gap}' for gap in gap_counts)} right?"
            )
        self.left_out.append(f"{sentence}: they were left out")
        return complete_examples

    def remarks(self) -> dict[str, str]:
        """How the labelled files were understood: a heading → what was decided, for the report."""
        return {}

    def labels_of(self, example: E) -> Collection[str]:
        """The labels of a labelled example, for tasks with classes or tags. When a dev part is held out, each
        label keeps examples in the training part.
        """
        return ()

    def group_key(self, example: E) -> Sequence[str]:
        """The texts that decide which examples stay together: those with one in common are never divided
        between train and dev. If the file has groups, the example's group; otherwise its texts.
        """
        group = getattr(example, "group", None)
        return self.texts(example) if group is None else (group,)

    @property
    def optional_group(self) -> str | None:
        """The group column, if a file may lack it; None if files must have it or no column is named."""
        group = getattr(self.settings, "group", None)
        may_lack = self.is_trained and "group" not in self.given_columns
        return group if may_lack and isinstance(group, str) and not group.isdecimal() else None

    def tell_lost_groups(self, examples: Sequence[E], path: Path | str) -> None:
        """Adds a sentence to `left_out` if no labelled example of a file has the optional group."""
        if self.optional_group and all(getattr(example, "group", None) is None for example in examples):
            self.left_out.append(
                f"{path} has no {self.optional_group!r}, by which rows of one source were kept together in "
                "training: none are here"
            )

    @abstractmethod
    def texts(self, example: E) -> Sequence[str]:
        """The texts of an example that are to be tokenised."""

    @abstractmethod
    def encode(self, example: E, pieces: Sequence[TextEncoding], tokenizer: Tokenizer) -> EncodedExample:
        """Encodes an example as windows of at most `max_length` tokens, with the target. `pieces` are the
        encodings of `texts(example)`, in their order.
        """

    # -- model ---------------------------------------------------------------------------------------------

    @abstractmethod
    def head(self, config: BertConfig) -> Head:
        """A new head for an encoder with this config."""

    def bind(self, head: Head) -> None:
        """Takes the head in use, for a task that needs its weights in loss and decoding (a CRF's
        transitions), or in the files of sentence-transformers (a projection).
        """
        self.trained_projection = head.projection

    def copy_projection(self, width: int) -> Projection | None:
        """The task's projection for the head of an encoder of this width, if there is one."""
        return None if self.projection is None else self.projection.copy_for(width)

    def bound_weights(self) -> Bound:
        """The weights that `bind` took from the head for decoding, by name; empty if the outputs suffice."""
        return {}

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Sequence[Any]) -> Tensor:
        """The loss of the head's outputs against the examples' targets, summed; the training loop divides it
        by `count`.
        """

    @property
    def needs_global_batch(self) -> bool:
        """Whether the loss compares the examples of a batch with each other, as contrastive losses do. Then
        the outputs of the whole batch, of all processes, are gathered before `losses` computes it.
        """
        return False

    def losses(self, outputs: Tensor, targets: Sequence[Any]) -> Tensor:
        """Each example's loss (E,) in a whole batch, whose loss is their sum. Outputs (E, C, …) may end in
        padding zeros if examples of another micro-batch have more rows.
        """
        raise NotImplementedError

    def make_batches(self, targets: Sequence[Any], order: Ints, batch_size: int) -> list[Ints]:
        """Divides an epoch's examples into batches of indices. `order` (E,) has the shuffled indices of all
        examples; the same order gives the same batches.
        """
        return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]

    def count(self, targets: Sequence[Any]) -> float:
        """The number by which the training loop divides the summed loss of these targets, such as the number
        of tagged words. By default the number of examples.
        """
        return len(targets)

    # -- teacher and student -------------------------------------------------------------------------------

    def distillation_loss(self, temperature: float, head: Head) -> DistillationLoss:
        """The loss of a student's outputs against its teachers': the squared difference of numbers, unless
        the task overrides it.
        """
        return RowLoss() if head.per_row else DistillationLoss()

    def as_teacher(self) -> "Task[E]":
        """The task with the head whose outputs teach a student most; the weights are the same."""
        return self

    def teach(self, outputs: Sequence[Outputs]) -> list[Outputs]:
        """What a student learns from a teacher's outputs, each (C,), (R, C) or (T, H), with the bound
        head.
        """
        return list(outputs)

    def as_student(self, settings: Mapping[str, Any]) -> Self:
        """The teacher's task with other settings, not calibrated yet. Raises RecipeError for a bad value."""
        state = self.state()
        state["settings"] = state["settings"] | dict(settings) | dict(self.student_settings)
        check(self.Settings, state["settings"], "the student")
        uncalibrated = {name: None for name in ("confidence", "threshold") if name in state}
        return type(self).from_state(state | uncalibrated, "the teacher")

    def average(
        self, teachers: Sequence["Task[E]"], outputs: Sequence[Sequence[Outputs]]
    ) -> Sequence[Sequence[Outputs]] | None:
        """Takes the mean of several teachers' thresholds. If the teachers' `outputs` must be brought to one
        scale before they are averaged, returns them on that scale. Returns None if the averaged answers that
        the student learns from are decoded as they are.
        """
        return None

    def begin_student(self, answers: Sequence[Outputs]) -> None:
        """Sets what a new head starts from, given the teacher's answers: the unit of numbers, how often each
        label holds.
        """

    def as_label(self, example: E, prediction: Prediction) -> E:
        """The example with a model's prediction as its label, for a task with `answers_are_labels`."""
        raise NotImplementedError

    def check_taught(self, labelled: Sequence[E]) -> None:
        """Raises InputError for labels that can't be learned beside a teacher's answers: labels that the
        teacher can't predict, or numbers on another scale.
        """

    def know_labelled(self, labelled: Sequence[E]) -> None:
        """Takes note of a student's labelled examples before they are encoded: documents that answer a query
        are never used as its negatives, and classes are weighed by their frequency.
        """

    def answer_of(self, probabilities: Sequence[float]) -> Outputs | None:
        """The head outputs (C,) that correspond to the given probabilities of the labels, as a file may have
        them; None if the task learns from labels only.
        """
        return None

    def identity(self, example: E) -> Sequence[str]:
        """The texts by which two unlabelled examples are recognised as copies of each other."""
        return self.texts(example)

    def spellings(self, text: str) -> Iterator[str]:
        """Other forms in which the task reads a text. A pruned vocabulary has to keep their tokens too."""
        return iter(())

    def for_file(self, path: Path, columns: Mapping[str, Any]) -> Self:
        """The task for a file with another layout than the training files, given its columns. Raises
        RecipeError for an unknown setting or a bad value.
        """
        other = copy(self)
        settings = self.settings.model_dump() | dict(columns)
        other.settings = check(type(self.settings), settings, "the given columns")
        return other

    @property
    def compares_vectors(self) -> bool:
        """Whether the encoder answers by the cosine of two texts, without a head that has weights."""
        return False

    @property
    def fits_static_table(self) -> bool:
        """Whether a static table of word vectors with a linear head can replace the model."""
        return False

    # -- rows to label -------------------------------------------------------------------------------------

    separator = ","  # between several labels of a cell

    def read_partly_labelled(self, path: Path | str, *, needs_label: bool = False) -> list[E]:
        """Reads rows of which only some have a label. Raises InputError for a task that doesn't read such
        files.
        """
        raise InputError(f"A task that reads rows of texts is needed; {self.name} doesn't.")

    def label_probabilities(self, outputs: Outputs) -> Floats:
        """(E, …) -> (E, C), the probability of each label, for a task with `has_probabilities`."""
        probabilities = self.probabilities(outputs)
        assert probabilities is not None
        return probabilities

    def likeliest(self, probabilities: Floats) -> tuple[Floats, Floats]:
        """Probabilities (E, C) -> the predicted labels as ones in (E, C), and their confidence (E,)."""
        predicted = np.asarray(np.eye(probabilities.shape[1])[probabilities.argmax(1)])
        return predicted, np.asarray(probabilities.max(1))

    # -- as a graph ----------------------------------------------------------------------------------------

    def decoding(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """The keys of decoding.json: what a program without Bertsmith needs to decode a graph's outputs, in
        addition to labels and `activation`.
        """
        return {}

    def outputs_of_vectors(self, vectors: Outputs) -> Outputs:
        """The head's outputs for an example, given a graph's vector (T, H) of each of its texts."""
        return vectors

    def change_of(self, ours: Outputs, theirs: Outputs, decoding: "Task[E]", spread: float) -> float:
        """How much a graph's outputs for a window, decoded by `decoding`, differ from the model's: the
        largest difference of a probability, or of a number in units of `spread`.
        """
        first, second = self.probabilities(ours), decoding.probabilities(theirs)
        if first is None or second is None:
            first, second = ours.astype(np.float64), theirs.astype(np.float64)
            return float(np.abs(second - first).max(initial=0.0)) / spread
        return float(np.abs(second - first).max(initial=0.0))

    def recalibrated(self, own: Sequence[Outputs], others: Sequence[Outputs]) -> Self:
        """The task for decoding a graph whose outputs deviate a little from the model's own: its temperature
        brings the graph's probabilities closest to the model's.
        """
        return self

    def calibration_error(self, outputs: Sequence[Outputs], targets: Sequence[Any]) -> float | None:
        """The expected calibration error of the confidence; None for a task without a confidence."""
        return None

    # -- looking inside ------------------------------------------------------------------------------------

    def answer_number(
        self, example: E, encoded: EncodedExample, outputs: Outputs, target: str | int | None
    ) -> AnswerNumber:
        """What an explanation explains: a name, and a differentiable function from the head's outputs for S
        copies of the example to (S,), the model's confidence or the number that it predicts. `outputs` are
        those of the example itself: (1, C), (1, T, H) or (R, C). `target` names another class, or a word;
        None stands for the model's own answer. Raises InputError for a target that doesn't exist.
        """
        raise InputError(
            f"The answers of a model for {self.name} can't be explained: its task doesn't say which number "
            "stands for an answer (answer_number)."
        )

    def refuse_target(self, target: str | int | None) -> None:
        """Raises InputError for a target, for a task that answers one thing only."""
        if target is not None:
            raise InputError(
                f"target: a model for {self.name} answers one thing, found {target!r}. Leave target out."
            )

    def label_number(self, outputs: Outputs, target: str | int | None) -> int:
        """The index of the label that `target` names or, if it is None, of the likeliest by outputs (C,).
        Raises InputError for an unknown label.
        """
        label = self.labels[int(outputs.argmax())] if target is None else str(target)
        if label not in self.label_ids:
            raise InputError(f"target: there is no class {label!r}. There are: {', '.join(self.labels[:8])}.")
        return self.label_ids[label]

    # -- predictions ---------------------------------------------------------------------------------------

    def calibrate(
        self, outputs: Sequence[Outputs], examples: Sequence[E], encoded: Sequence[EncodedExample]
    ) -> Metrics:
        """Chooses temperature and thresholds on dev. Returns the figures of that choice."""
        return {}

    @abstractmethod
    def decode(
        self, outputs: Sequence[Outputs], examples: Sequence[E], encoded: Sequence[EncodedExample]
    ) -> list[Prediction]:
        """Turns the head's outputs into predictions, one for each example."""

    def uncalibrate(self) -> None:
        """Forgets the confidence that `calibrate` chose, when the model is replaced by another."""

    def decode_by_folds(
        self,
        outputs: Sequence[Outputs],
        examples: Sequence[E],
        encoded: Sequence[EncodedExample],
        folds: Ints,
        bound: Mapping[int, Bound] = UNBOUND,
    ) -> list[Prediction]:
        """Like `decode`, for cross-validation: each example is judged by the model of its fold, `folds` (E,).
        If an answer depends on what `calibrate` chooses, the choice is made on the other folds, because
        choosing on an example's own fold would flatter the score. `bound` has the `bound_weights` of each
        fold's model; a fold that is missing was judged by a new head.
        """
        return self.decode(outputs, examples, encoded)

    def _judges(
        self, folds: Ints, *of_examples: Sequence[Any]
    ) -> Iterator[tuple[Self, int, list[int], list[Any], list[Any]]]:
        """For each fold: a copy of the task to judge it, the fold's number, the indices of its examples, and
        each of `of_examples` restricted to them and to all others.
        """
        for fold in sorted(set(folds.tolist())):
            own, others = np.flatnonzero(folds == fold).tolist(), np.flatnonzero(folds != fold).tolist()
            parts = [[[values[row] for row in rows] for values in of_examples] for rows in (own, others)]
            yield copy(self), fold, own, *parts

    @abstractmethod
    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[E]) -> Metrics:
        """The field's standard metrics of predictions for labelled examples."""

    def scorer(self, predictions: Sequence[Prediction], examples: Sequence[E]) -> Callable[[Ints], float]:
        """Returns a function from example indices (n,), which may repeat, to the main metric on those
        examples. A bootstrap calls it hundreds of times, so a task whose metric follows from counts computes
        each example's counts once.
        """

        def score(rows: Ints) -> float:
            chosen_rows = rows.tolist()
            chosen = [predictions[row] for row in chosen_rows]
            return self.metrics(chosen, [examples[row] for row in chosen_rows])[self.main_metric]

        return score

    def error_analysis(self, predictions: Sequence[Prediction], examples: Sequence[E]) -> ErrorAnalysis:
        """What the report shows of labelled examples in addition to the metrics."""
        return ErrorAnalysis()

    def line(self, example: E, prediction: Prediction) -> dict[str, Any]:
        """One row of a predictions file: the example, its label if it has one, and the prediction."""
        return {"where": example.where, **prediction}

    def baselines(self, train: Sequence[E], dev: Sequence[E]) -> dict[str, list[Prediction]]:
        """Predictions of simple baselines for `dev`, by name; the most frequent answer comes first."""
        return {}

    # -- state ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that decoding needs besides the weights, as JSON. Columns are stored by their name in
        the training files, because another file may number them differently.
        """
        settings = self.settings.model_dump(mode="json") | dict(self.named_columns)
        state = {"settings": settings, "labels": list(self.labels)}
        return state if self.projection is None else state | {"projection": self.projection.state()}

    def write_extra_files(self, folder: Path, config: BertConfig) -> None:
        """Writes further files into the folder of a saved model, for other tools that expect them."""

    @classmethod
    def from_state(cls, state: Mapping[str, Any], where: str) -> Self:
        """The inverse of `state`. Raises ModelError if the file `where` was altered."""
        task = cls(*read_state(state, cls.Settings, where))
        task.is_trained = True
        if state.get("projection") is not None:
            task.projection = Projection.from_state(state["projection"], where)
        return task

    def config_labels(self) -> dict[str, Any]:
        """The keys on labels that transformers reads from config.json."""
        names = {str(index): name for index, name in enumerate(self.labels)}
        return {"id2label": names, "label2id": dict(self.label_ids)}


def fitted_again(task: Task[Any], train: Sequence[Any]) -> Task[Any]:
    """A copy of the task, fitted to these rows alone (the unit of its numbers, the weights of its classes).
    The fitted columns stay as they are. If the rows lack one of the labels or teach nothing, the copy keeps
    everything.
    """
    unchanged, refitted = reading_columns(task, {}), reading_columns(task, {})
    try:
        refitted.fit(train)
    except InputError:
        return unchanged
    if refitted.labels != task.labels:
        return unchanged
    refitted.columns = task.columns
    return refitted


def some_of(labels: Sequence[str]) -> str:
    """The first eight labels and how many more there are, for messages."""
    return ", ".join(labels[:8]) + (f" and {len(labels) - 8} more" if len(labels) > 8 else "")


def reading_columns(task: Task[Any], columns: Mapping[str, Any]) -> Task[Any]:
    """A copy of the task that reads other columns; None leaves a column as it was. Raises RecipeError for an
    unknown setting or a bad value.
    """
    changed = {name: value for name, value in columns.items() if value is not None}
    settings = check(type(task.settings), task.settings.model_dump() | changed, "the given columns")
    state = task.state() | {"settings": settings.model_dump(mode="json")}
    return type(task).from_state(state, "the given columns")
