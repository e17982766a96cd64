"""Learns classes from their names: a linear model of the frozen encoder's features, whose rows are the names
of the labels, the labelled rows where there are some, and texts without labels, each with the probabilities
that names and rows give it (tasks/heads/label_names.py).

The methods `names` and `names-texts` are this model without and with the texts. Where no row judges, because
there is no label yet or each has a single text, they are all that can be learned, and `NamesStudy` says what
to expect of them.

P phrasings of a name, C classes, E labelled rows, U unlabelled texts, F features.
"""

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
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.heads.classifier_head import ClassifierHead
from bertsmith.tasks.heads.label_names import NameStart, classify_by_names
from bertsmith.tasks.heads.linear_start import LinearProbe, LinearStart, compute_features, minimise
from bertsmith.tasks.task import Outputs, Task, some_of
from bertsmith.tasks.task_model import TaskModel
from bertsmith.text.labelled.label_names import humanise_label

MOST_TEXTS = 20_000  # unlabelled texts where nothing is cross-validated
_USUAL_STRENGTH = 0.06  # of the L2 penalty, where no rows can choose it
_WEIGHT = 0.3  # of an unlabelled text whose class is certain, where a labelled one has 1
_ITERATIONS = 30  # of the optimiser with the texts, after the rows alone
_ALIKE, _MOST_ALIKE = 0.8, 5  # cosine of two names from which they are told, and how many pairs
_UNSURE, _DOUBTFUL = 5, 0.1  # texts shown; share of texts that are told to be doubtful


def phrase_names(names: Mapping[str, str], hint: str | None = None) -> dict[str, tuple[str, ...]]:
    """The phrasings of each label, as many for all: its name in words, the name in the `hint`, such as "the
    customer asks about {}", and its description. `names` has the descriptions, "" for none.
    """
    if hint is not None and hint.count("{}") != 1:
        raise InputError(
            f"--hint: expected {{}} once, for the name, as in 'the customer asks about {{}}'; found {hint!r}."
        )
    phrasings = dict[str, tuple[str, ...]]()
    has_descriptions = any(names.values())
    for name, description in names.items():
        words = humanise_label(name)
        hinted = [hint.replace("{}", words)] if hint is not None else []
        phrasings[name] = (words, *hinted, *([description or words] if has_descriptions else []))
    return phrasings


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
        task: Task[Any],
        head: ClassifierHead,
        train: EncodedExamples,
        rows: Sequence[Tensor],
        names: Tensor,
        texts: Tensor | None,
        text_examples: Sequence[Any] = (),
        strength: float | None = None,
        seconds: float = 0.0,
    ) -> None:
        """Takes the features (F,) of each row of `train`, of `names` (P * C, F), phrasing by phrasing, and of
        the `texts` (U, F) of `text_examples`. `strength` is that of the L2 penalty.
        """
        labels, self.text_examples = task.labels, text_examples
        self._names = names.view(-1, len(labels), names.shape[1])  # (P, C, F)
        self._texts, self._targets = texts, [example.target for example in train.encoded]
        self._count, self._strength, self.seconds = len(train), strength or _USUAL_STRENGTH, seconds
        examples = [*train.examples, *(TextExample(label, None, label, "") for label in labels)]
        name_rows = self._names.mean(0)
        lengths = self._names.norm(dim=2).mean(0) / name_rows.norm(dim=1).clamp_min(1e-9)
        features = [*rows, *(name_rows * lengths[:, None])]
        self._probe = LinearProbe(
            task, head, examples, features, [*self._targets, *range(len(labels))], seconds
        )

    @classmethod
    def of(
        cls,
        task: Task[Any],
        model: TaskModel,
        train: EncodedExamples,
        names: EncodedExamples,
        text_examples: Sequence[Any] = (),
        texts: Sequence[Tensor] = (),
        probe: LinearProbe | None = None,
        strength: float | None = None,
    ) -> "NameTraining":
        """Computes features by the `model`; those of `train` are the `probe`'s, if it has all of them.
        `texts` are the features (F,) of each of `text_examples`.
        """
        start = time.monotonic()
        assert isinstance(model.head, ClassifierHead)
        if probe is not None and len(probe) == len(train):
            rows: Sequence[Tensor] = list(probe.features(np.arange(len(train))))
        else:
            rows = compute_features(model, train.encoded)
        of_names = torch.stack(compute_features(model, names.encoded))
        of_texts = torch.stack(list(texts)) if texts else None
        seconds = time.monotonic() - start
        return cls(task, model.head, train, rows, of_names, of_texts, text_examples, strength, seconds)

    @cached_property
    def found(self) -> NameStart | None:
        """What names and all rows say of the unlabelled texts; None without texts."""
        return self._classify(np.arange(self._count))

    @property
    def name_features(self) -> Tensor:
        """The features (P, C, F) of the names."""
        return self._names

    def fit(self, *, texts: bool) -> LinearStart:
        """The linear model of all labelled rows, the names, and, with `texts`, the unlabelled texts."""
        start = time.monotonic()
        weights = self._learn(np.arange(self._count), self.found if texts else None)
        return LinearStart(
            *self._probe.unscale(weights), self._strength, self.seconds + time.monotonic() - start
        )

    def judge(self, folds: Ints, *, texts: bool) -> list[Outputs]:
        """Outputs (C,) for each labelled row by a model of the other folds, the names and perhaps the texts.
        `folds` (E,) has the fold of each row.
        """
        by_row: list[Outputs] = [np.empty(0, np.float32)] * len(folds)
        for fold in sorted(set(folds.tolist())):
            held_out, others = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
            weights = self._learn(others, self._classify(others) if texts else None)
            outputs = self._probe.outputs(weights, held_out).numpy()
            for row, output in zip(held_out.tolist(), outputs, strict=True):
                by_row[row] = output
        return by_row

    def _classify(self, rows: Ints) -> NameStart | None:
        if self._texts is None:
            return None
        texts, names = self._texts.double().numpy(), self._names.double().numpy()
        if not len(rows):
            return classify_by_names(names, texts)
        features = self._probe.features(rows).double().numpy()
        return classify_by_names(names, texts, features, np.array(self._targets, np.int64)[rows])

    def _learn(self, rows: Ints, found: NameStart | None) -> tuple[Tensor, Tensor]:
        """The weights of a linear model of these rows, the names, and of the texts as they were `found`, each
        with a weight of how sure it is.
        """
        weights = self._probe.make_initial_weights()
        with_names = np.concatenate([rows, np.arange(self._count, len(self._probe))])
        self._probe.solve(weights, with_names, self._strength)
        if found is None or self._texts is None:
            return weights
        texts, targets = self._probe.scale(self._texts), torch.from_numpy(found.probabilities).float()
        sure = _WEIGHT * targets.max(1).values

        def total() -> Tensor:
            losses = F.cross_entropy(texts @ weights[0].T + weights[1], targets, reduction="none")
            return self._probe.penalised_loss(weights, with_names, self._strength) + (sure * losses).sum()

        minimise(weights, total, _ITERATIONS)
        return weights


@dataclass(frozen=True)
class NamesStudy:
    """What is known of a model that was learned from names, without rows that judge it.

    `way`, `reason`, `disagreement` and `expected` are as in NameStart. `texts` of `all_texts` unlabelled
    texts were read. `shares` is the share of texts by label, `alike` are pairs of labels whose names say
    nearly the same, with their cosine, and `unsure` are some of the texts that the model is least sure of.
    `rows` are the labelled rows,
    `doubtful` is the probability that the labels of the least sure tenth of the texts do not reach.
    """

    way: str
    reason: str
    disagreement: Mapping[str, float]
    expected: tuple[float, float, float]
    texts: int
    all_texts: int
    rows: int
    shares: Mapping[str, float]
    alike: tuple[tuple[str, str, float], ...]
    unsure: tuple[tuple[str, str, float], ...]
    doubtful: float

    def sentences(self, *, estimate: bool = True) -> list[str]:
        """What to tell the user, a sentence each; the `estimate` only where no rows have measured better."""
        by = "the names with the texts" if self.way == "texts" else "the nearest name"
        rows = f" and {self.rows:,} labelled rows" if self.rows else ""
        score, low, high = self.expected
        lines = [f"Taken: {by}{rows}; {self.reason}."]
        lines += [
            f"{'By the nearest name' if way == 'names' else 'With the texts' if way == 'texts' else way} "
            f"{share:.0%} of the texts would have another label."
            for way, share in self.disagreement.items()
        ]
        lines.append(
            f"The least sure tenth of the texts reaches no probability of {self.doubtful:.2f}: what fits "
            "none of the labels is most likely there."
        )
        if not estimate:
            return lines
        lines.append(
            f"Expected accuracy: {score:.2f} ({low:.2f} to {high:.2f}). No labels measured this: it is an "
            "estimate."
        )
        return lines

    def warnings(self) -> list[str]:
        """What to look at, a sentence each."""
        lines = [
            f"the names {first!r} and {second!r} say nearly the same to the model (cosine {cosine:.2f}): "
            "describe them, with --labels TABLE that has the columns label and description"
            for first, second, cosine in self.alike
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
    found, examples = training.found, training.text_examples
    if found is None:
        return None
    likeliest, certainty = found.probabilities.argmax(1), found.probabilities.max(1)
    counts = np.bincount(likeliest, minlength=len(labels)) / max(len(examples), 1)
    unsure = np.argsort(certainty, kind="stable")[:_UNSURE].tolist()
    return NamesStudy(
        found.way,
        found.reason,
        dict(found.disagreement),
        found.expected,
        len(examples),
        all_texts,
        rows,
        dict(zip(labels, counts.tolist(), strict=True)),
        tuple(_find_alike(training.name_features.double().numpy(), labels)),
        tuple((examples[row].text, labels[likeliest[row]], float(certainty[row])) for row in unsure),
        float(np.quantile(certainty, _DOUBTFUL)),
    )


def _find_alike(names: Floats, labels: Sequence[str]) -> list[tuple[str, str, float]]:
    """The pairs of labels whose names (P, C, F) have the highest cosine, where it is high."""
    vectors = names.mean(0)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    cosines = np.triu(vectors @ vectors.T, 1)
    order = np.argsort(-cosines, axis=None, kind="stable")[:_MOST_ALIKE]
    pairs = [divmod(int(index), len(labels)) for index in order]
    return [
        (labels[first], labels[second], float(cosines[first, second]))
        for first, second in pairs
        if cosines[first, second] >= _ALIKE
    ]
