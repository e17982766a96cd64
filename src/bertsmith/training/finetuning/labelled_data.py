"""Reads the labelled files of a fine-tuning run, and checks them alone and together before any training."""

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from bertsmith.arrays import Ints
from bertsmith.errors import InputError, RecipeError
from bertsmith.tasks.examples.columns import comparable_cells
from bertsmith.tasks.examples.held_out import (
    divided_sources,
    folds_of,
    group_of,
    hold_out,
    remove_held,
    repeated_texts,
    shared_sources,
    shared_texts,
    shared_with_train,
)
from bertsmith.tasks.heads.name_training import MOST_TEXTS, name_examples, phrase_names, require_named
from bertsmith.tasks.task import Task
from bertsmith.text.files.values import is_blank
from bertsmith.text.labelled.label_names import (
    are_mostly_codes,
    find_look_alikes,
    find_missing_values,
    find_placeholders,
    format_counts,
    is_code,
    is_number,
    read_label_names,
)
from bertsmith.training.finetune_recipe import FinetuneRecipe

FEWEST_TEXTS = 10  # different texts that folds need
_MOST_WORDS = 5  # of a label, on average: others are texts
_MOST_ALIKE = 3  # groups of similar labels that a warning lists
FEW_ROWS = 30  # of dev: with fewer, a single row changes accuracy by more than 3 points


@dataclass
class LabelledData:
    """A task fitted to the labels of `train`, and its examples: `train`, `dev` to choose by, `test` to report
    on, and `unlabelled` ones. `names` has the phrasings of each label's name, if names say something;
    `is_judged` is False where there are names and unlabelled texts, but no rows that could judge a model.
    `warnings` are sentences for the user on what looks wrong in the data.
    """

    task: Task[Any]
    train: list[Any]
    dev: list[Any]
    test: list[Any] | None = None
    unlabelled: Sequence[Any] = ()
    warnings: tuple[str, ...] = ()
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    is_judged: bool = True

    @classmethod
    def read(cls, task: Task[Any], recipe: FinetuneRecipe, *, folds: bool = False) -> "LabelledData":
        """Reads the recipe's files and fits the task to the labels.

        Without a dev file, a share of the training rows is held out as dev. If the recipe means
        cross-validation for so many rows and `folds` allows it, dev stays empty instead. Raises InputError
        naming file and line, and RecipeError if there are too few texts for the folds that the recipe gives.
        """
        given_names = read_names(task, recipe)
        data = cls(task, task.read_files(recipe.train_files) if recipe.train else [], [])
        data.know_names(given_names, recipe.hint)
        data.require_enough_texts(recipe)
        if data.learns_from_names_alone(recipe):
            data.is_judged = False
            if recipe.dev is None and getattr(task.settings, "abstains", False):
                raise RecipeError(
                    "When to abstain is chosen by labelled rows, and there are none that could judge. Give "
                    "some with --dev, or leave out coverage, error_cost and abstain_cost."
                )
        elif folds and recipe.fold_count(len(data.train)) and data.can_be_folded:
            data._require_labels_twice(recipe)
        elif recipe.dev is None:
            data._hold_out(recipe)
        if recipe.dev is not None:
            data.dev = task.read(Path(recipe.dev))
        data.test = task.read(Path(recipe.test)) if recipe.test else None
        # A few empty texts are allowed, but if all are empty, the wrong column was read.
        if data.train and all(is_blank(text) for example in data.train for text in task.texts(example)):
            raise InputError(
                f"Every text is empty, from {data.train[0].where} on. Is --text the right column?"
            )
        data.fit_task()
        for examples in (data.train, data.dev, data.test or []):
            task.check(examples)
        if recipe.unlabelled is not None:
            data._read_unlabelled(recipe.unlabelled)
        data.warnings = tuple(data._collect_warnings(recipe))
        return data

    def know_names(self, given: Mapping[str, str] | None, hint: str | None) -> None:
        """Keeps the names of the labels: the `given` ones, or, if those of the rows are words, these. Raises
        InputError for a row whose label isn't among the given ones, and RecipeError if the rows are pairs.
        """
        if given is not None:
            _require_names_suit(self.task)
            require_named(self.train, given)
            self.names = phrase_names(given, hint)
        elif self.task.learns_names:
            labels = dict.fromkeys(example.label for example in self.train)
            if not are_mostly_codes([label for label in labels if is_code(label)], len(labels)):
                self.names = phrase_names(dict.fromkeys(labels, ""), hint)

    def fit_task(self) -> None:
        """Fits the task to the labels of `train`, and to the names that have no row there, each as one row:
        class weights count rows, not phrasings.
        """
        known = self._count_labels(self.train) if self.names else {}
        absent = [name for name in self.names if name not in known]
        self.task.fit([*self.train, *name_examples(self.names, absent)[: len(absent)]])

    def learns_from_names_alone(self, recipe: FinetuneRecipe) -> bool:
        """Whether the rows are too few to judge a model, but the names say what they would teach. Names that
        aren't given, but only those of the rows, have to be short: others are texts, in the wrong column.
        """
        if not self.train:
            return True
        if not self.names or self.dev or recipe.dev is not None or recipe.folds is not None:
            return False
        if recipe.names is not None:
            return not self.can_be_folded or self._has_single_texts()
        words = sum(len(phrasings[0].split()) for phrasings in self.names.values())
        return self._has_single_texts() and words <= _MOST_WORDS * len(self.names)

    @property
    def can_be_folded(self) -> bool:
        """Whether there are enough texts for folds, where texts that have to share a fold count once."""
        return self._count_distinct_texts() >= FEWEST_TEXTS

    def require_enough_texts(self, recipe: FinetuneRecipe) -> None:
        """Raises RecipeError if there are too few different texts for the folds that the recipe gives."""
        needed = max(FEWEST_TEXTS, recipe.folds or 0)
        if recipe.folds is None or (texts := self._count_distinct_texts()) >= needed:
            return
        advice = "Give more rows, or leave folds out"
        if texts >= FEWEST_TEXTS:
            advice = f"Give folds={texts} or fewer"
        raise RecipeError(
            f"folds = {recipe.folds} takes {needed:,} different texts or more, and {recipe.train_name} has "
            f"{texts:,}. {advice}."
        )

    def require_negatives(self, recipe: FinetuneRecipe) -> None:
        """Raises RecipeError for batches of one row if the task learns by comparing a batch's rows."""
        if recipe.batch_size == 1:
            self.task.check_alone(self.train)

    def folds(self, count: int, seed: int) -> Ints:
        """The fold (E,) of each training example, in [0, count)."""
        return folds_of(self.task, self.train, count, seed)

    def copy_for_another_model(self) -> "LabelledData":
        """The same data with a copy of the task, since a task that is bound to a model decodes by its
        weights.
        """
        return replace(self, task=copy(self.task))

    def _count_distinct_texts(self) -> int:
        """The number of groups of training texts that may be in different folds."""
        return len({group_of(self.task, example) for example in self.train})

    def _hold_out(self, recipe: FinetuneRecipe) -> None:
        """Moves a share of the training rows to dev. Raises InputError if there are too few."""
        train, dev = hold_out(self.task, self.train, recipe.dev_share)
        if not train or not dev:
            if 2 * len(self._count_labels(self.train)) > max(len(self.train), FEWEST_TEXTS):
                raise self._rare_labels_error(recipe)
            texts = self._count_distinct_texts()
            needed = next(texts for texts in count(2) if round(recipe.dev_share * texts))
            raise InputError(
                f"{recipe.train_name} has {len(self.train):,} rows with {texts:,} different texts: too few "
                f"to hold out {recipe.dev_share:.0%} of them. Give at least {needed} different texts, or "
                "rows to choose by with --dev."
            )
        self.train, self.dev = train, dev

    def _require_labels_twice(self, recipe: FinetuneRecipe) -> None:
        """Raises InputError if every label has a single text, and there are many labels. In cross-validation
        such a text is scored by models that haven't seen its label.
        """
        if self._has_single_texts():
            raise self._rare_labels_error(recipe)

    def _has_single_texts(self) -> bool:
        """Whether every label has a single text, and there are many labels."""
        texts_of: dict[str, set[tuple[str, ...]]] = {}
        for example in self.train:
            for label in self.task.labels_of(example):
                texts_of.setdefault(label, set()).add(group_of(self.task, example))
        return 2 * len(texts_of) > len(self.train) and all(len(texts) == 1 for texts in texts_of.values())

    def _rare_labels_error(self, recipe: FinetuneRecipe) -> InputError:
        """The error for labels of which hardly any comes twice."""
        labels = self._count_labels(self.train)
        other = " Numbers are for regression." if all(map(is_number, labels)) else ""
        return InputError(
            f"{recipe.train_name} has {len(labels):,} labels in {len(self.train):,} rows: hardly any comes "
            f"twice. Is --label the right column? If it is, give rows to choose by with --dev.{other}"
        )

    def _count_labels(self, examples: Sequence[Any]) -> Counter[str]:
        return Counter(label for example in examples for label in self.task.labels_of(example))

    def _read_unlabelled(self, file: str) -> None:
        """Reads the unlabelled texts that aren't in the other files, each once; the same text with other
        columns is another row, but no text of dev or test is taken, in whatever case; without dev every
        training row is judged in its fold. Raises InputError if there are none, and RecipeError for a task
        that can't learn from them.
        """
        task = self.task
        if not task.learns_unlabelled:
            raise RecipeError(
                f"only classification learns from unlabelled texts, not {task.name}. Leave --unlabelled out."
            )
        if self.is_judged:
            texts = task.read(Path(file), labelled=False)
        else:
            texts, count = task.draw_texts(Path(file), MOST_TEXTS)
            if len(texts) < count:
                task.left_out.append(
                    f"of {count:,} texts {len(texts):,} were drawn by chance, and learned from"
                )
        rows = [*self.train, *texts]
        cells = comparable_cells([getattr(row, "columns", ()) for row in rows], task.column_kinds)
        keys = [(*task.texts(row), columns) for row, columns in zip(rows, cells, strict=True)]
        known = set(keys[: len(self.train)])
        fresh = dict(zip(keys[len(self.train) :], texts, strict=True))
        keeps = getattr(task.settings, "missing", "refuse") == "keep"  # then one text of a pair is enough
        unknown = [
            row
            for key, row in fresh.items()
            if key not in known
            and (task.has_text(row) or keeps)
            and not all(map(is_blank, (*task.texts(row), *getattr(row, "columns", ()))))
        ]
        self.unlabelled = remove_held(task, unknown, [*(self.dev or self.train), *(self.test or ())])
        if not self.is_judged and any(row.text_pair is not None for row in self.unlabelled):
            raise InputError(
                f"{file}: by the names of its columns it has pairs of texts, and names are learned beside "
                "single texts. Name the column of the text with --text."
            )
        if not self.unlabelled:
            raise InputError(
                f"{file} has no text that isn't among the labelled ones: there is nothing to learn."
            )

    # -- warnings --------------------------------------------------------------------------------------------

    def _collect_warnings(self, recipe: FinetuneRecipe) -> list[str]:
        """Sentences on what looks wrong in the data: in its rows, its labels, and between its files."""
        task, train, dev, test = self.task, self.train, self.dev, self.test
        sentences = [
            f"{name}: {warning}"
            for name, examples in (("train", train), ("dev", dev), ("test", test or []))
            for warning in task.warnings(examples)
        ]
        labels = self._count_labels(self.train)
        sentences += [*task.left_out, *repeated_texts(task, train), *_label_warnings(task, labels)]
        if not self.is_judged:
            sentences += self._unjudged_warnings()
        elif dev:
            sentences += self._dev_warnings()
        else:
            folds = recipe.fold_count(len(train))
            sentences += [*_fold_warnings(labels, folds), *divided_sources(task, train)]
        for name, path, examples in (("dev", recipe.dev, dev), ("test", recipe.test, test)):
            told = list[int]()
            if path and examples:
                told = shared_texts(map(task.texts, train), map(task.texts, examples))
                sentences += shared_with_train(task, train, examples, name, recipe.train_name)
            sentences += shared_sources(task, train, examples or [], name, told)
        return sentences

    def _unjudged_warnings(self) -> list[str]:
        """A sentence on labelled rows that are too few to judge anything."""
        if not self.train:
            return []
        why = "each label has a single text" if self._has_single_texts() else "they are too few"
        return [
            f"the {len(self.train):,} labelled rows can't judge a model in turn, since {why}: it learns "
            "from them and from the names of the labels. Is --label the right column? Two rows a label are "
            "judged"
        ]

    def _dev_warnings(self) -> list[str]:
        """Sentences on a dev set that can't tell good weights from bad ones: too few rows, or one label."""
        sentences: list[str] = []
        if len(self.dev) < FEW_ROWS:
            sentences.append(
                f"dev has {len(self.dev)} rows: too few to choose weights by, and its figures say little. "
                "Give more with --dev, or a larger dev_share"
            )
        labels = self._count_labels(self.dev)
        if len(labels) == 1 and labels.total() == len(self.dev):  # of several labels a text may have none
            sentences.append(
                f"dev has one label only, {next(iter(labels))!r}: whoever always gives it is right there"
            )
        return sentences


def read_names(task: Task[Any], recipe: FinetuneRecipe) -> dict[str, str] | None:
    """The names of the labels that the recipe gives, with their descriptions; None if it gives none. Raises
    RecipeError for a task that doesn't learn from names.
    """
    if recipe.names is None:
        return None
    _require_names_suit(task)
    return read_label_names(recipe.names)


def _require_names_suit(task: Task[Any]) -> None:
    if not task.learns_names:
        beside = ", and no columns beside the text" if task.learns_unlabelled else f", not {task.name}"
        raise RecipeError(
            f"--labels gives the names of a classification of single texts{beside}. Leave it out."
        )


def _label_warnings(task: Task[Any], counts: Counter[str]) -> list[str]:
    """Sentences on labels that are probably slips, but become classes of their own: look-alikes, and names
    that mean a missing label elsewhere. `counts` has the rows of each label.
    """
    alike = find_look_alikes(counts)
    sentences = [
        f"the labels {format_counts(counts, labels)} differ in case, blanks or Unicode's form alone, and are "
        "learned as different ones: are they?"
        for labels in alike[:_MOST_ALIKE]
    ]
    if len(alike) > _MOST_ALIKE:
        sentences.append(f"{len(alike) - _MOST_ALIKE:,} more labels are spelled in several ways")
    for label in find_placeholders(counts):
        sentences.append(
            f"the label {label!r} ({counts[label]:,} rows) is learned as a class. In data of Hugging Face "
            "it says that there is no label: remove such rows if it does"
        )
    for label in find_missing_values(counts):
        sentences.append(
            f"the label {label!r} ({counts[label]:,} rows) is learned as a class. Where tables have no value "
            "they have it, too: if so, remove such rows"
        )
    return sentences + task.label_warnings(counts)


def _fold_warnings(rows: Counter[str], folds: int) -> list[str]:
    """A sentence on labels with fewer rows than folds, since models of some folds see too few of them or
    none. `rows` has the rows of each label.
    """
    rare = [label for label, count in rows.items() if count < folds]
    if not rare or not folds:
        return []
    return [
        f"{len(rare):,} of {len(rows):,} labels have fewer than {folds} rows, such as {rare[0]!r}: "
        "cross-validation trains on too few of them, and the model will do better than its score says"
    ]
