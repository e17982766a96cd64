"""Tasks as transformers' own scripts have them: encoding, collator, and the metrics of other libraries.

Metrics have our names. Examples are ours, so that both sides read the same rows.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers import DataCollatorForTokenClassification, DataCollatorWithPadding

from trainer import Row, outputs_of


class Classes:
    """A class for each text or pair, as in run_glue.py."""

    def __init__(self, tokenizer: Any, labels: list[str], max_length: int) -> None:
        self.tokenizer, self.labels, self.max_length = tokenizer, labels, max_length
        self.collate: Any = DataCollatorWithPadding(tokenizer)

    def encode(self, examples: Sequence[Any]) -> list[Row]:
        pairs = [example.text_pair for example in examples]
        encoded = self.tokenizer(
            [example.text for example in examples],
            None if pairs[0] is None else pairs,
            truncation=True,
            max_length=self.max_length,
        )
        columns = {**encoded, "labels": [self.target(example) for example in examples]}
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def target(self, example: Any) -> Any:
        return self.labels.index(example.label)

    def metrics(self, model: Any, rows: Sequence[Row], examples: Sequence[Any]) -> dict[str, float]:
        from sklearn.metrics import accuracy_score, f1_score

        gold = [row["labels"] for row in rows]
        guessed = [int(logits.argmax()) for (logits,) in outputs_of(model, self.collate, rows, ["logits"])]
        found = {"accuracy": float(accuracy_score(gold, guessed))}
        return found | ({"f1": float(f1_score(gold, guessed))} if len(self.labels) == 2 else {})


class Numbers(Classes):
    """A number for each text or pair, as in run_glue.py."""

    def target(self, example: Any) -> Any:
        return float(example.label)

    def metrics(self, model: Any, rows: Sequence[Row], examples: Sequence[Any]) -> dict[str, float]:
        from scipy.stats import pearsonr, spearmanr

        gold = [row["labels"] for row in rows]
        guessed = [float(logits[0]) for (logits,) in outputs_of(model, self.collate, rows, ["logits"])]
        return {
            "spearman": float(spearmanr(gold, guessed).statistic),
            "pearson": float(pearsonr(gold, guessed).statistic),
        }


class Sets(Classes):
    """Any number of labels for each text or pair: a sigmoid each, given from a half on."""

    def target(self, example: Any) -> Any:
        return [float(label in example.label) for label in self.labels]

    def metrics(self, model: Any, rows: Sequence[Row], examples: Sequence[Any]) -> dict[str, float]:
        from sklearn.metrics import f1_score

        outputs = outputs_of(model, self.collate, rows, ["logits"])
        guessed = np.stack([logits >= 0 for (logits,) in outputs])
        gold = np.array([row["labels"] for row in rows], np.bool_)
        strange = sum(len(set(example.label) - set(self.labels)) for example in examples)
        right, given, wanted = (gold & guessed).sum(), guessed.sum(), gold.sum() + strange
        assert strange or np.isclose(2 * right / (given + wanted), f1_score(gold, guessed, average="micro"))
        return {"micro_f1": float(2 * right / (given + wanted))}


class Tags:
    """A tag for each word, read from its first piece, as in run_ner.py."""

    def __init__(self, tokenizer: Any, labels: list[str], max_length: int) -> None:
        self.tokenizer, self.labels, self.max_length = tokenizer, labels, max_length
        self.collate: Any = DataCollatorForTokenClassification(tokenizer)

    def encode(self, examples: Sequence[Any]) -> list[Row]:
        encoded = self.tokenizer(
            [list(example.words) for example in examples],
            is_split_into_words=True,
            truncation=True,
            max_length=self.max_length,
        )
        rows = []
        for number, example in enumerate(examples):
            words, labels = encoded.word_ids(number), []
            for before, word in zip([None, *words], words):
                first = word is not None and word != before
                labels.append(self.labels.index(example.tags[word]) if first else -100)
            rows.append({name: values[number] for name, values in encoded.items()} | {"labels": labels})
        return rows

    def metrics(self, model: Any, rows: Sequence[Row], examples: Sequence[Any]) -> dict[str, float]:
        """By seqeval; a word that truncation cut off counts as O."""
        from seqeval.metrics import f1_score

        guessed = []
        outputs = outputs_of(model, self.collate, rows, ["logits"])
        for row, (logits,), example in zip(rows, outputs, examples, strict=True):
            read = np.flatnonzero(np.array(row["labels"]) != -100)
            tags = [self.labels[number] for number in logits[read].argmax(axis=1)]
            guessed.append(tags + ["O"] * (len(example.words) - len(tags)))
        return {"f1": float(f1_score([list(example.tags) for example in examples], guessed))}


USUAL: dict[str, Any] = {
    "classification": Classes,
    "multi-label": Sets,
    "regression": Numbers,
    "tagging": Tags,
}
