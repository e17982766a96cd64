"""Learning from the answers of a teacher that has changed: a new LLM or prompt, or the same name with other
answers. The former teacher's calls are many and the new one's few; most labels mean the same to both.

A model of the former answers predicts the new calls. That tells how often the teachers differ, and for each
label what the new teacher says where the former said it (T, as in learning with noisy labels: Patrini et al.
2017, arXiv 1609.03683). A second model learns from the former answers through T and from the new calls, and
the target of a former call is T of its answer times what the second model says of its text: one step of
expectation and maximisation (Dawid and Skene 1979); more steps made students worse. So a label that the new
teacher splits in two is split by the texts. Read `translate_former` first; `find_change` finds a change that
no name tells.

C classes of a field, E calls.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from scipy.special import softmax, xlogy
from scipy.stats import fisher_exact

from bertsmith.arrays import Bools, Float32s, Floats
from bertsmith.errors import BertsmithError
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.metrics.baselines import TOKEN
from bertsmith.metrics.guarantees.bounds import binomial_p_value, clopper_pearson
from bertsmith.metrics.scores import Interval
from bertsmith.mirror.answering.replays import ReplayStore
from bertsmith.mirror.call import LABELLED, UNDATED
from bertsmith.mirror.fields import AnswerShape, Field, FieldHead
from bertsmith.mirror.identity import hash_fraction
from bertsmith.mirror.learning.learned_calls import LearnedCall, is_drawn, read_calls
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.targets import build_heads, build_targets
from bertsmith.mirror.learning.tiers import fit_classes
from bertsmith.mirror.learning.understand import LearningRecords, SiteProfile, understand
from bertsmith.mirror.store import Store
from bertsmith.reporting.formatting import format_percent

Features = Callable[[Sequence[str]], Any]  # texts -> (E, F), dense or sparse; None where there are none
KINDS = ("enum", "boolean", "ordinal")  # of fields with one of several values
_KEPT = 2.0  # calls that speak for a label's keeping its meaning, before any is seen
_NEW_WEIGHT = 5.0  # of a new call beside a former one, in the second model
_LEAST = 1e-4  # probability that the new teacher gives any label
_HELD_OUT = 0.2  # of the former calls, to know how often their model differs without any change
_FEWEST = 50  # new calls that tell the teachers apart
_LATEST = (150, 250, 400, 650, 1000, 1600, 2500, 4000, 6500)  # calls that may be since a change
_CHANGE_BY_CHANCE = 0.002
_HARM_BY_CHANCE = 0.01


@dataclass(frozen=True)
class TranslatedCalls:
    """Former `calls` with the new teacher's probable answers in `probabilities`. Of `new_calls` new ones
    `new_differing` answers differ from a model of the former answers, of `former_calls` held-out former ones
    `former_differing`; `change` is the interval of the share of answers that the new teacher gives
    differently.
    """

    calls: list[LearnedCall]
    new_calls: int
    new_differing: int
    former_calls: int
    former_differing: int
    change: Interval

    def as_sentence(self) -> str:
        """How many answers are learned from, and how many the teachers answer differently."""
        low, high = (format_percent(max(end, 0.0)) for end in self.change)
        return (
            f"It also learns from {len(self.calls):,} answers of the former LLM or prompt. The present one "
            f"answers {low} to {high} of the calls differently (with 95 % confidence: a model of the former "
            f"answers differs in {self.new_differing:,} of {self.new_calls:,} new calls, and in "
            f"{self.former_differing:,} of {self.former_calls:,} former ones that it hadn't learned from)."
        )


def word_features(texts: Sequence[str]) -> Any:
    """(E, F): TF-IDF of words and pairs of words; None where no text has a word."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    try:
        return TfidfVectorizer(ngram_range=(1, 2), token_pattern=TOKEN, sublinear_tf=True).fit_transform(
            texts
        )
    except ValueError:  # an empty vocabulary
        return None


def embedding_features(model: str) -> Features:
    """The vectors (E, F) of an encoder, of each text once. Raises MissingExtra and ModelError where there is
    no such encoder.
    """
    embedder, vectors = Embedder(model), dict[str, Float32s]()

    def features(texts: Sequence[str]) -> Any:
        new = list({text: None for text in texts if text not in vectors})
        if new:
            vectors.update(zip(new, np.asarray(embedder.documents(new), np.float32), strict=True))
        return np.stack([vectors[text] for text in texts])

    return features


def choose_features(settings: LearnSettings) -> Features:
    """Vectors of the encoder that a student starts from, else words. The encoder is opened with the first
    texts, and once.
    """
    opened = list[Features]()

    def features(texts: Sequence[str]) -> Any:
        if not opened:
            try:
                opened.append(embedding_features(settings.model))
            except BertsmithError:  # the training says what is missing
                opened.append(word_features)
        return opened[0](texts)

    return features if "encoder" in settings.tiers else word_features


def find_change(
    calls: Sequence[LearnedCall], shape: AnswerShape, seed: int = 0, features: Features = word_features
) -> float | None:
    """Since when the answers of a version differ from those before, in seconds since 1970. None where they
    don't, by models of the calls before some latest ones, against what such models miss among the earlier
    calls (Fisher's exact test); and where it does no harm to learn from the earlier answers as they are: the
    inputs may have changed, or the teacher errs more often.

    `calls` are in the order of time; those of a labelled file, and those without a time, are left out.
    """
    calls = [c for c in calls if c.source not in (LABELLED, UNDATED) and is_drawn(c, seed)]
    counts = [count for count in _LATEST if 2 * count <= len(calls)]
    if any(field.kind not in KINDS for field in shape.fields) or not counts:
        return None
    heads, x = build_heads(shape, calls), features([call.text for call in calls])
    if x is None:
        return None
    halves = np.array([hash_fraction(call.text, seed) < 0.5 for call in calls])
    differs = np.zeros(len(calls), np.bool_)
    for is_own in (halves, ~halves):
        own, others = np.flatnonzero(is_own), np.flatnonzero(~is_own)
        model = _fit(x[others], [calls[n] for n in others], heads, shape)
        differs[own] = _differing(_logits(x[own], model), [calls[n] for n in own], heads, shape)

    def latest_differing(count: int) -> Bools:
        model = _fit(x[:-count], calls[:-count], heads, shape)
        return _differing(_logits(x[-count:], model), calls[-count:], heads, shape)

    p_values = []
    for count in counts:
        new, before = latest_differing(count), differs[:-count]
        table = [[new.sum(), count - new.sum()], [before.sum(), len(before) - before.sum()]]
        p_values.append(float(fisher_exact(table, alternative="greater")[1]))
    best = int(np.argmin(p_values))
    if p_values[best] * len(counts) > _CHANGE_BY_CHANCE:
        return None
    # Where, among twice as many: the place that divides them best into two rates.
    window = min(2 * counts[best], len(calls) // 2)
    sums = latest_differing(window).cumsum()
    places = np.arange(1, window - counts[0] // 2 + 1)
    parts = (sums[places - 1], places), (sums[-1] - sums[places - 1], window - places)
    likelihood = sum(xlogy(k, k / n) + xlogy(n - k, (n - k) / n) for k, n in parts)
    place = len(calls) - window + int(places[np.argmax(likelihood)])
    is_harmful = _is_harmful(calls[:place], calls[place:], heads, shape, seed, features)
    return calls[place].began if is_harmful else None


def describe_time(since: float) -> str:
    """Since when the answers have changed, in a sentence."""
    began = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%d %H:%M")
    return f"Since {began} UTC the LLM answers otherwise than before."


def _is_harmful(
    former: Sequence[LearnedCall],
    new: Sequence[LearnedCall],
    heads: Sequence[FieldHead],
    shape: AnswerShape,
    seed: int,
    features: Features,
) -> bool:
    """Whether learning from the `former` calls as they are is worse for the new ones than learning from them
    translated: by the sign test on new calls that neither has learned from.
    """
    is_dev = [hash_fraction(call.text, seed + 4) < 0.5 for call in new]
    dev = [call for call, is_own in zip(new, is_dev, strict=True) if is_own]
    train = [call for call, is_own in zip(new, is_dev, strict=True) if not is_own]
    translated = translate_former(former, train, shape, seed, features)
    x = features([call.text for call in (*former, *train, *dev)])
    if translated is None or x is None or not dev:
        return False
    x, own = x[: -len(dev)], x[-len(dev) :]
    agrees = [
        ~_differing(_logits(own, _fit(x, calls, heads, shape)), dev, heads, shape)
        for calls in ([*former, *train], [*translated.calls, *train])
    ]
    worse, better = int((agrees[0] & ~agrees[1]).sum()), int((agrees[1] & ~agrees[0]).sum())
    return float(binomial_p_value(worse, worse + better, 0.5)) < _HARM_BY_CHANCE


def read_former_calls(records: LearningRecords, profile: SiteProfile) -> list[LearnedCall]:
    """The calls of the site's versions before this group's, with answers that fit its fields; of the latest
    group that has any, those merged with it included, and of their answers the present fields alone. Empty
    where there are none. Without those whose input is asked again under the present versions.
    """
    own = {version.version for version in profile.versions}
    began = min(version.began for version in profile.versions)
    for group in reversed(records.groups()):
        names = {version.version for version in group}
        is_former = group[0].site == profile.site and min(version.began for version in group) < began
        if not is_former or names & own or sum(version.calls for version in group) < _FEWEST:
            continue
        former = understand(records.store, group)
        calls = read_calls(records.store, replace(former, shape=profile.shape)).calls
        calls = leave_out_replayed(records.store, profile, calls)
        # Without the parts that the present answers don't have: they would count as different.
        paths = [field.path for field in profile.shape.fields]
        fitting = [
            replace(call, values={path: call.values[path] for path in paths})
            for call in calls
            if profile.shape.allows(call.values)
        ]
        if 2 * len(fitting) > len(calls):
            return fitting
    return []


def leave_out_replayed(store: Store, profile: SiteProfile, calls: Sequence[LearnedCall]) -> list[LearnedCall]:
    """The former calls without those with an input that was, or is to be, asked again under one of the
    present versions: the answers may prove a student, which then mustn't know it.
    """
    recorded = set(ReplayStore(store).recorded(own.version for own in profile.versions).values())
    if not recorded:
        return list(calls)
    (newest,) = store.latest(profile.latest.version, 1)
    template, texts = profile.templates.get(newest.version), set[str]()
    for call in store.calls_named(recorded).values():
        request = replace(call.request, messages=(*newest.request.system, *call.request.inputs))
        if template is not None and (text := template.input_of(request)) is not None:
            texts.add(text)
    return [call for call in calls if call.id not in recorded and call.text not in texts]


def translate_former(
    former: Sequence[LearnedCall],
    new: Sequence[LearnedCall],
    shape: AnswerShape,
    seed: int = 0,
    features: Features = word_features,
    asked: Sequence[LearnedCall] = (),
) -> TranslatedCalls | None:
    """The former teacher's calls with targets for the new one, by `new` calls, and by those that were `asked`
    again for the answers that they had, which don't tell how often the teachers differ. None where the
    answers aren't all one of several values, where there are too few calls, or where the texts have no words.
    """
    if any(field.kind not in KINDS for field in shape.fields) or len(new) < _FEWEST:
        return None
    held_out = np.array([hash_fraction(call.text, seed) < _HELD_OUT for call in former], np.bool_)
    learned = [call for call, is_held_out in zip(former, held_out, strict=True) if not is_held_out]
    if len(learned) < _FEWEST:
        return None
    later = [*new, *asked]
    heads, x = build_heads(shape, [*former, *later]), features([call.text for call in (*former, *later)])
    if x is None:
        return None
    first = _fit(x[np.flatnonzero(~held_out)], learned, heads, shape)
    former_logits, later_logits = _logits(x[: len(former)], first), _logits(x[len(former) :], first)
    new_logits = {path: logits[: len(new)] for path, logits in later_logits.items()}
    new_differs = _differing(new_logits, new, heads, shape)
    former_differs = _differing(former_logits, former, heads, shape)[held_out]
    translated = list(former)
    through = [
        _pass_through(head, shape.field(head.path), softmax(later_logits[head.path], axis=1), former, later)
        for head in heads
    ]
    for head, (_, targets) in zip(heads, through, strict=True):
        translated = _with_targets(translated, head, shape.field(head.path), targets)
    weights = np.repeat([1.0, _NEW_WEIGHT], [len(former), len(later)])
    logits = _logits(x[: len(former)], _fit(x, [*translated, *later], heads, shape, weights))
    for head, (matrix, _) in zip(heads, through, strict=True):
        field = shape.field(head.path)
        told = np.nan_to_num(build_targets(head, field, former)) @ matrix + _LEAST
        targets = told * softmax(logits[head.path], axis=1)
        translated = _with_targets(translated, head, field, targets / targets.sum(axis=1, keepdims=True))
    counts = int(new_differs.sum()), len(new), int(former_differs.sum()), len(former_differs)
    return TranslatedCalls(translated, counts[1], counts[0], counts[3], counts[2], _difference(*counts))


def _fit(
    x: Any,
    calls: Sequence[LearnedCall],
    heads: Sequence[FieldHead],
    shape: AnswerShape,
    weights: Floats | None = None,
) -> dict[str, Floats]:
    """The weights (F + 1, C) of logistic regression by path, from features x (E, F)."""
    matrices = {}
    for head in heads:
        targets = build_targets(head, shape.field(head.path), calls)
        rows = np.flatnonzero(~np.isnan(targets).any(axis=1))
        matrices[head.path] = fit_classes(x[rows], targets[rows], None if weights is None else weights[rows])
    return matrices


def _logits(x: Any, matrices: Mapping[str, Floats]) -> dict[str, Floats]:
    return {path: np.asarray(x @ matrix[:-1] + matrix[-1]) for path, matrix in matrices.items()}


def _differing(
    logits: Mapping[str, Floats], calls: Sequence[LearnedCall], heads: Sequence[FieldHead], shape: AnswerShape
) -> Bools:
    """(E,) whether a model's answer differs from the call's."""
    predictions = {head.path: head.predict(shape.field(head.path), logits[head.path]) for head in heads}
    return np.array(
        [
            bool(
                shape.differing_paths(
                    {path: column[number].value for path, column in predictions.items()}, call.values
                )
            )
            for number, call in enumerate(calls)
        ],
        np.bool_,
    )


def _pass_through(
    head: FieldHead,
    field: Field,
    predicted: Floats,
    former: Sequence[LearnedCall],
    new: Sequence[LearnedCall],
) -> tuple[Floats, Floats]:
    """T (C, C): the new teacher's label by the former's, from the `predicted` former labels (E, C) of the new
    calls; and the former targets through it.
    """
    targets = np.nan_to_num(build_targets(head, field, new))
    matrix = _KEPT * np.eye(len(head.classes)) + predicted.T @ targets
    matrix /= matrix.sum(axis=1, keepdims=True)
    return matrix, np.nan_to_num(build_targets(head, field, former)) @ matrix


def _with_targets(
    calls: Sequence[LearnedCall], head: FieldHead, field: Field, targets: Floats
) -> list[LearnedCall]:
    values = [field.classes[number] for number in head.classes]
    changed = []
    for call, row in zip(calls, targets, strict=True):
        if not row.sum():  # its answer was no class of the head
            changed.append(call)
            continue
        shares = [(values[index], float(row[index])) for index in np.flatnonzero(row > _LEAST)]
        changed.append(
            replace(
                call,
                values={**call.values, field.path: values[int(row.argmax())]},
                probabilities={**call.probabilities, field.path: shares},
            )
        )
    return changed


def _difference(differing: int, calls: int, former_differing: int, former_calls: int) -> Interval:
    """The interval of a difference of two rates from those of each (Newcombe 1998, method 10, with exact
    ends).
    """
    rate, former_rate = differing / calls, former_differing / max(former_calls, 1)
    new, former = (
        clopper_pearson(differing, calls, 0.05),
        clopper_pearson(former_differing, former_calls, 0.05),
    )
    below = np.hypot(rate - new.low, former.high - former_rate)
    above = np.hypot(new.high - rate, former_rate - former.low)
    return Interval(float(rate - former_rate - below), float(rate - former_rate + above))
