"""Learns classes from their names: a linear model of the frozen encoder's features, whose rows are the names
of the labels, the labelled rows where there are some, and the surest texts without labels, each with the
class that names and rows give it (tasks/heads/label_names.py).

The methods `names` and `names-texts` are this model without and with the texts. Where no row judges, because
there is no label yet or each has a single text, they are all that can be learned, and `NamesStudy` says what
to expect of them.

P phrasings of a name, C classes, E labelled rows, U unlabelled texts, F features.
"""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bertsmith.arrays import Floats, Ints
from bertsmith.errors import InputError
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.finetuning import EncodedExamples, encode_examples
from bertsmith.tasks.heads.label_names import (
    NEAREST,
    PHRASINGS,
    QUESTION_PHRASINGS,
    ROWS_TEXTS,
    TEMPERATURE,
    NameStart,
    TextGraph,
    classify_by_names,
    classify_with_rows,
    mean_names,
    normalise,
)
from bertsmith.tasks.heads.linear_start import (
    LinearProbe,
    LinearStart,
    TextFeatures,
    compute_features,
    minimise,
)
from bertsmith.tasks.task import Outputs, Task, some_of
from bertsmith.tasks.task_model import TaskModel
from bertsmith.text.labelled.label_names import humanise_label, is_code
from bertsmith.text.tokens.tokenizer import Tokenizer

MOST_TEXTS = 20_000  # unlabelled texts where nothing is cross-validated
_STRENGTH = 0.1  # of the L2 penalty, for features of length 1
_NAME_WEIGHT = 0.7  # of each of three vectors of a name, where a labelled row has 1
_TEXT_WEIGHT, _TEXT_WEIGHT_BESIDE_ROWS = 0.3, 0.1  # of an unlabelled text
_ITERATIONS = 60  # of the optimiser
_NEVER = -1e4  # the output of a class that isn't predicted
_MOST_CONFUSED = 5  # pairs of labels that are told
# What six to twenty labelled rows brought beyond names and texts: the mean, the ends of eight in ten sets.
_TEN_ROWS_AFTER_TEXTS, _TEN_ROWS_AFTER_NEAREST = (0.02, -0.02, 0.06), (0.07, -0.01, 0.15)
_QUESTION_MARKS, _MOSTLY_QUESTIONS = ("?", "\uff1f", "\u061f"), 0.8
_UNSURE, _DOUBTFUL = 5, 0.1  # texts shown; share of texts that are told to be doubtful


def phrase_names(names: Mapping[str, str], hint: str | None = None) -> dict[str, tuple[str, ...]]:
    """The phrasings of each label: the first in the `hint`, such as "the customer asks about {}", if there is
    one, and with its description; the others as in PHRASINGS, and then as in QUESTION_PHRASINGS without their
    first. `suit_phrasings` chooses of these. `names` has the descriptions, "" for none.
    """
    if hint is not None and hint.count("{}") != 1:
        raise InputError(
            f"--hint: expected {{}} once, for the name, as in 'the customer asks about {{}}'; found {hint!r}."
        )
    phrasings = dict[str, tuple[str, ...]]()
    for name, description in names.items():
        words = description if description and is_code(name) else humanise_label(name)
        bare = words if hint is None else hint.replace("{}", words)
        described = f"{bare}: {description}" if description and words != description else bare
        others = (*PHRASINGS[1:], *QUESTION_PHRASINGS[1:])
        phrasings[name] = (described, *(phrasing.replace("{}", words) for phrasing in others))
    return phrasings


def suit_phrasings(
    phrasings: Mapping[str, Sequence[str]], examples: Sequence[TextExample]
) -> dict[str, tuple[str, ...]]:
    """Of the phrasings of each label those for questions if four of five of the texts end in a question mark,
    else the others. Of 1,500 questions MiniLM then gets 50 to 62 % right by four sets of names of six kinds
    of answer, and 45 to 58 % by the others (nearest name: 43 to 53 %).
    """
    questions = sum(example.text.rstrip().endswith(_QUESTION_MARKS) for example in examples)
    count = len(PHRASINGS)
    if not examples or questions < _MOSTLY_QUESTIONS * len(examples):
        return {label: tuple(words[:count]) for label, words in phrasings.items()}
    return {label: (words[0], *words[count:]) for label, words in phrasings.items()}


def require_named(examples: Sequence[TextExample], names: Collection[str]) -> None:
    """Raises InputError for an example whose label isn't among the names."""
    for example in examples:
        if example.label not in names:
            raise InputError(
                f"{example.where}: the label {example.label!r} is not among those of --labels "
                f"({some_of(list(names))}). Add it there, or mend it here."
            )


def name_examples(phrasings: Mapping[str, Sequence[str]], labels: Sequence[str]) -> list[TextExample]:
    """Each phrasing as an example with its label: the first ones of all `labels`, then the second ones …"""
    count = len(phrasings[labels[0]]) if labels else 0
    return [
        TextExample(phrasings[label][number], None, label, f"the name {label!r}")
        for number in range(count)
        for label in labels
    ]


class NameTraining:
    """Linear models of labelled rows and of the labels' names, without and with unlabelled texts. All
    features are computed once, so that a fold costs no pass of the encoder. `seconds` is how long they took.
    """

    def __init__(
        self,
        rows: Tensor,
        targets: Ints,
        names: Tensor,
        texts: Tensor | None,
        text_examples: Sequence[Any] = (),
        seconds: float = 0.0,
        class_weights: Floats | None = None,
    ) -> None:
        """Takes the features (E, F) of labelled rows with their classes `targets` (E,), of `names` (P, C, F),
        and of the `texts` (U, F) of `text_examples`. What a class teaches counts by its `class_weights` (C,).
        """
        self._class_weights = np.ones(names.shape[1]) if class_weights is None else class_weights
        self.text_examples, self.seconds, self._targets = text_examples, seconds, targets
        self._names = names.numpy()
        vectors = rows if texts is None else torch.cat([rows, texts])
        self._scale = float((vectors if len(vectors) else names.flatten(0, 1)).norm(dim=1).mean()) or 1.0
        self._rows, self._texts = rows / self._scale, None if texts is None else texts / self._scale
        means = mean_names(normalise(self._names))
        self._name_rows = torch.from_numpy(np.concatenate(means))
        self._name_targets = np.tile(np.arange(names.shape[1]), len(means))

    @classmethod
    def of(
        cls,
        model: TaskModel,
        task: Task[Any],
        tokenizer: Tokenizer,
        phrasings: Mapping[str, Sequence[str]],
        train: EncodedExamples,
        texts: TextFeatures,
        probe: LinearProbe | None = None,
    ) -> "NameTraining":
        """Computes features by the `model`, which the `task` is fitted for; those of `train` are the
        `probe`'s, if it has all of them. `phrasings` are those of each label, by `phrase_names`; `texts` may
        be empty.
        """
        start = time.monotonic()
        suited = suit_phrasings(phrasings, [*train.examples, *texts.examples])
        names = encode_examples(task, name_examples(suited, task.labels), tokenizer)
        of_names = torch.stack(compute_features(model, names.encoded)).float()
        if not len(train):
            rows = of_names[:0]
        elif probe is not None and len(probe) == len(train):
            rows = probe.features(np.arange(len(train))).float()
        else:
            rows = torch.stack(compute_features(model, train.encoded)).float()
        classes = len(task.labels)
        return cls(
            rows,
            np.array([example.target for example in train.encoded], np.int64),
            of_names.view(-1, classes, of_names.shape[1]),
            torch.stack(texts.features).float() if texts.features else None,
            texts.examples,
            time.monotonic() - start,
            np.array([task.count([number]) for number in range(classes)]),
        )

    @property
    def rows_of_names(self) -> float:
        """How many labelled rows the names count for."""
        return _NAME_WEIGHT * len(self._name_rows)

    @cached_property
    def by_names(self) -> NameStart | None:
        """What the names say of the unlabelled texts, without rows; None without texts."""
        if self._texts is None:
            return None
        return classify_by_names(self._names, TextGraph(self._texts.numpy()))

    @cached_property
    def start(self) -> NameStart | None:
        """What names and all rows say of the unlabelled texts; None without texts."""
        return self._classify(np.arange(len(self._rows)))

    def fit(self, *, texts: bool) -> LinearStart:
        """The linear model of all labelled rows, the names, and, with `texts`, the unlabelled texts."""
        started = time.monotonic()
        weight, bias = self._learn(np.arange(len(self._rows)), self.start if texts else None)
        return LinearStart(weight / self._scale, bias, _STRENGTH, self.seconds + time.monotonic() - started)

    def judge(self, folds: Ints, *, texts: bool, share: float = 1.0, unseen: bool = True) -> list[Outputs]:
        """Outputs (C,) for each labelled row by a model of the other folds, or of this `share` of them, the
        names and perhaps the texts. `folds` (E,) has the fold of each row. Without `unseen` a class that none
        of those rows has is never predicted: a name that only labelled rows tell isn't known before them.
        """
        by_row: list[Outputs] = [np.empty(0, np.float32)] * len(folds)
        generator = np.random.default_rng(0)
        for fold in sorted(set(folds.tolist())):
            held_out, others = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
            if share < 1:
                others = np.sort(generator.choice(others, round(share * len(others)), replace=False))
            weight, bias = self._learn(others, self._classify(others) if texts else None)
            outputs = (self._rows[held_out] @ weight.T + bias).numpy()
            if not unseen:
                outputs[:, ~np.isin(np.arange(outputs.shape[1]), self._targets[others])] = _NEVER
            for row, output in zip(held_out.tolist(), outputs, strict=True):
                by_row[row] = output
        return by_row

    def usual_gain(self, *, texts: bool) -> tuple[float, float]:
        """The gain in accuracy over a linear model of the rows alone that is usual for so many rows a class,
        and its spread: 12 points at one row, 2 at eight, none at forty, and where texts help 5 and 1 more.
        None is usual where the guard leaves the texts alone, or where the rows say that the names are no
        better than chance. Measured on 22 sets by two encoders, and from 300 rows of two.
        """
        share = max(len(self._rows), 1) / self._names.shape[1]
        gain, spread = 0.13 / share**0.75 - 0.008, 0.1 / share**0.4 * min(1, 10 / share) ** 0.5
        helps = self.start is None or self.start.way == ROWS_TEXTS
        if not helps or self._are_names_doubtful():
            gain = min(gain, 0.0)
        if not texts or self.start is None:
            return gain, spread
        return gain + (0.05 / share**0.6 if helps else -0.04), math.hypot(spread, 0.06)

    def _are_names_doubtful(self) -> bool:
        """Whether the rows are right by their nearest name so rarely that names no better than chance are six
        times likelier than names that tell a quarter of the rest.
        """
        chance, rows = 1 / self._names.shape[1], len(self._rows)
        nearest = (normalise(self._rows.numpy()) @ normalise(self._names[0]).T).argmax(1)
        hits, useful = int((nearest == self._targets).sum()), chance + (1 - chance) / 4
        ratio = hits * math.log(useful / chance) + (rows - hits) * math.log((1 - useful) / (1 - chance))
        return ratio < -math.log(6)

    def _classify(self, rows: Ints) -> NameStart | None:
        """What the names and these rows say of the unlabelled texts."""
        if self._texts is None or self.by_names is None or not len(rows):
            return self.by_names
        vectors = torch.cat([self._texts, self._rows[rows]])
        weight, bias = self._learn(rows, None)
        known = np.concatenate([np.full(len(self._texts), -1), self._targets[rows]])
        logits = (vectors @ weight.T + bias).numpy()
        return classify_with_rows(self._names, TextGraph(vectors.numpy()), logits, known, self.by_names)

    def _learn(self, rows: Ints, start: NameStart | None) -> tuple[Tensor, Tensor]:
        """Weights (C, F) and biases (C,) of a logistic regression on these rows, on the names, and on the
        sure ones of the unlabelled texts, for features in the scale of this training. If the nearest name is
        the way, the weights are the names: their outputs are ordered as the cosines are.
        """
        if start is not None and start.way == NEAREST:
            return torch.from_numpy(normalise(self._names[0])) / TEMPERATURE, torch.zeros(
                self._names.shape[1]
            )
        features, targets = [self._rows[rows], self._name_rows], [self._targets[rows], self._name_targets]
        weights = [np.ones(len(rows)), np.full(len(self._name_rows), _NAME_WEIGHT)]
        if start is not None and self._texts is not None:
            sure = np.flatnonzero(start.sure[: len(self._texts)])
            features.append(self._texts[sure])
            targets.append(start.probabilities[sure].argmax(1))
            weights.append(np.full(len(sure), _TEXT_WEIGHT_BESIDE_ROWS if len(rows) else _TEXT_WEIGHT))
        classes = np.concatenate(targets)
        inputs, labels = torch.cat(features), torch.from_numpy(classes)
        importance = torch.from_numpy(np.concatenate(weights) * self._class_weights[classes]).float()
        weight = torch.zeros(self._names.shape[1:], requires_grad=True)
        bias = torch.zeros(self._names.shape[1], requires_grad=True)

        def total() -> Tensor:
            losses = F.cross_entropy(inputs @ weight.T + bias, labels, reduction="none")
            return (importance * losses).sum() + _STRENGTH / 2 * weight.square().sum()

        minimise((weight, bias), total, _ITERATIONS)
        return weight.detach(), bias.detach()


@dataclass(frozen=True)
class NamesStudy:
    """What is known of a model that was learned from names, without rows that judge it.

    `way`, `reason`, `disagreement` and `expected` are as in NameStart. `texts` of `all_texts` unlabelled
    texts were read. `shares` is the share of texts by label, `confused` are pairs of labels that the model
    confuses by their names, and `unsure` are some of the texts that it is least sure of. `rows` are the
    labelled rows. `doubtful` is the probability that the labels of the least sure tenth of the texts do not
    reach.
    """

    way: str
    reason: str
    disagreement: Mapping[str, float]
    expected: tuple[float, float, float] | None
    texts: int
    all_texts: int
    rows: int
    shares: Mapping[str, float]
    confused: tuple[tuple[str, str], ...]
    unsure: tuple[tuple[str, str, float], ...]
    doubtful: float

    def sentences(self, *, estimate: bool = True) -> list[str]:
        """What to tell the user, a sentence each; the `estimate` only where no rows have measured better."""
        lines = [f"Learned from {self.way}: {self.reason}."]
        lines += [
            f"From {way} alone, {share:.0%} of the texts would have another label."
            for way, share in self.disagreement.items()
        ]
        if self.doubtful < 0.995:  # else it would read as 1.00, and say nothing
            lines.append(
                f"The least sure tenth of the texts reaches no probability of {self.doubtful:.2f}: what fits "
                "none of the labels is most likely there."
            )
        if estimate and self.expected is not None:
            score, low, high = self.expected
            lines.append(
                f"Expected accuracy: {score:.2f} ({low:.2f} to {high:.2f}). No labels measured this: it is "
                "an estimate. Fifty texts drawn at random and labelled, as --test, tell it within 0.1."
            )
            gain, least, most = _TEN_ROWS_AFTER_NEAREST if self.way == NEAREST else _TEN_ROWS_AFTER_TEXTS
            lines.append(
                f"Ten labelled rows more bring {gain:.2f} on average ({least:+.2f} to {most:+.2f} in eight "
                "of ten sets)."
            )
        return lines

    def warnings(self) -> list[str]:
        """What to look at, a sentence each."""
        lines = [
            f"the names {first!r} and {second!r} say nearly the same to the model: describe them, with "
            "--labels TABLE that has the columns label and description"
            for first, second in self.confused
        ]
        if absent := [label for label, share in self.shares.items() if not share]:
            more = f" and {len(absent) - 3:,} more" if len(absent) > 3 else ""
            lines.append(
                f"no text has the label {', '.join(map(repr, absent[:3]))}{more}: describe it, or leave it "
                "out"
            )
        return lines


def study_names(
    training: NameTraining, labels: Sequence[str], all_texts: int, rows: int
) -> NamesStudy | None:
    """Describes what names and rows say of the unlabelled texts; None without texts."""
    start, examples = training.start, training.text_examples
    if start is None:
        return None
    probabilities = start.probabilities[: len(examples)]
    likeliest, certainty = probabilities.argmax(1), probabilities.max(1)
    counts = np.bincount(likeliest, minlength=len(labels)) / max(len(examples), 1)
    unsure = np.argsort(certainty, kind="stable")[:_UNSURE].tolist()
    return NamesStudy(
        start.way,
        start.reason,
        dict(start.disagreement),
        start.expected,
        len(examples),
        all_texts,
        rows,
        dict(zip(labels, counts.tolist(), strict=True)),
        tuple((labels[first], labels[second]) for first, second in start.confused[:_MOST_CONFUSED]),
        tuple((examples[row].text, labels[likeliest[row]], float(certainty[row])) for row in unsure),
        float(np.quantile(certainty, _DOUBTFUL)),
    )
