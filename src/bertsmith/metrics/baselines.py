"""What a score must beat: the majority, and models without any pre-training that train in seconds.

Each baseline learns from train and answers dev; the task's own metrics score its answers like the model's.
All are deterministic and bounded: what exceeds the bounds below is sampled, and the name says so.

Of columns alone a small gradient boosting (scikit-learn's, by histograms) learns: unlike a linear model it
finds thresholds, and what two columns mean together.

Questions are answered by words alone. The sentence that shares the rarest words with the question is found as
by the sliding window of Richardson et al. (2013, "MCTest"): each shared word counts log(1 + 1 / how often the
passage has it). There they choose among given answers; here the answer is a run of words of that sentence:
numbers where the question asks for one, else names, else whatever lies between the question's own words and
function words. English only in its word lists; elsewhere it falls back to runs between the question's words.

E examples, C classes or labels, F features.
"""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import log
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from bertsmith.arrays import Bools, Float32s, Floats, Ints
from bertsmith.metrics.thresholds import best_f1_cuts
from bertsmith.text.words import IN_ONE_RUN, WORD, WORD_PATTERN, WORD_WITHOUT_BLANKS, word_pattern

Text = str | tuple[str, str]  # a text, or a pair of them
Answers = TypeVar("Answers")

MOST_ROWS = 100_000
MOST_CHARACTERS = 30_000_000
MOST_DECISIONS = 5_000_000  # rows times labels, where each label has a model of its own
MOST_FEATURES = 200_000
MOST_WEIGHTS = 20_000_000  # features times classes: 160 MB

# Words, where no blanks divide them syllables or characters, and each other sign by itself: "?" tells much,
# and a text of emoji alone still has features.
_WORD_BETWEEN_BLANKS = word_pattern(rf"[^\W{IN_ONE_RUN}]")
TOKEN = rf"{WORD_WITHOUT_BLANKS}|{_WORD_BETWEEN_BLANKS}|[^\w\s]"
RUN_TOKEN = rf"{WORD_PATTERN}|[^\w\s]"  # runs of scripts without blanks are words: what older models count


_TITLES = {"majority": "always the most frequent label", "mean": "always the mean"}


def baseline_title(name: str) -> str:
    """A baseline's name in tables and sentences; files call it by the name itself."""
    return _TITLES.get(name, name)


@dataclass(frozen=True)
class Baseline(Generic[Answers]):
    """A baseline's `predictions` for dev, in its order, and its `name` in files."""

    name: str
    predictions: Answers


def majority_class(gold: npt.ArrayLike, rows: int) -> Baseline[Ints]:
    """The most frequent class of train (E,) for each of dev's rows; if several are, the first."""
    return Baseline("majority", np.full(rows, np.bincount(np.asarray(gold, np.int64)).argmax(), np.int64))


def majority_labels(gold: npt.ArrayLike, rows: int) -> Baseline[Bools]:
    """The most frequent set of labels of train (E, C) for each of dev's rows; it may be empty."""
    sets, counts = np.unique(np.asarray(gold, np.bool_), axis=0, return_counts=True)
    return Baseline("majority", np.tile(sets[counts.argmax()], (rows, 1)))


def mean_number(gold: npt.ArrayLike, rows: int) -> Baseline[Floats]:
    """The mean of train (E,) for each of dev's rows: no correlation, and the error to beat."""
    return Baseline("mean", np.full(rows, np.mean(np.asarray(gold, np.float64)), np.float64))


def tfidf_classes(train: Sequence[Text], gold: npt.ArrayLike, dev: Sequence[Text]) -> Baseline[Ints]:
    """Logistic regression over TF-IDF: class numbers (E,)."""
    from sklearn.linear_model import LogisticRegression

    gold = np.asarray(gold, np.int64)
    name, rows = _choose_rows("TF-IDF + logistic regression", train)
    if len(np.unique(gold[rows])) == 1:
        return Baseline(name, np.full(len(dev), gold[rows[0]], np.int64))
    learner = LogisticRegression(C=10.0, max_iter=200)
    predictions = _fit_and_predict(
        learner, train, rows, gold, dev, most_features=MOST_WEIGHTS // len(np.unique(gold))
    )
    return Baseline(name, predictions.astype(np.int64))


def tfidf_labels(train: Sequence[Text], gold: npt.ArrayLike, dev: Sequence[Text]) -> Baseline[Bools]:
    """One logistic regression for each label (one against the rest) over TF-IDF: truth values (E, C). The
    threshold for all labels is chosen on held-out rows of train.

    A label that train never or always has is never or always predicted.
    """
    gold = np.asarray(gold, np.bool_)
    labels = gold.shape[1]
    name, rows = _choose_rows("TF-IDF + one-vs-rest logistic regression", train, MOST_DECISIONS // labels)
    varied = gold[rows].any(axis=0) & ~gold[rows].all(axis=0)
    predictions = np.tile(gold[rows].all(axis=0), (len(dev), 1))
    if varied.any():
        learner = _OneVsRest(train, gold[:, varied], MOST_WEIGHTS // labels)
        predictions[:, varied] = learner.probabilities(rows, dev) >= learner.threshold(rows)
    return Baseline(name, predictions)


@dataclass(frozen=True)
class _OneVsRest:
    """A logistic regression for each of the labels `gold` (E, C) of train."""

    train: Sequence[Text]
    gold: Bools
    most_features: int

    def probabilities(self, rows: Ints, texts: Sequence[Text]) -> Floats:
        """Probabilities (T, C), learned from these rows."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.multiclass import OneVsRestClassifier

        if not texts:
            return np.zeros((0, self.gold.shape[1]))
        # liblinear is the fastest for one label at a time, and draws nothing when it solves the primal.
        learner = OneVsRestClassifier(LogisticRegression(C=10.0, solver="liblinear"))
        gold = self.gold.astype(int)
        probabilities = _fit_and_predict(
            learner, self.train, rows, gold, texts, self.most_features, "predict_proba"
        )
        return np.asarray(
            probabilities[:, -self.gold.shape[1] :], np.float64
        )  # a single label has a column for its absence too

    def threshold(self, rows: Ints) -> float:
        """The threshold with the best micro-averaged F1 on a fifth of the rows, given the regressions of the
        others.
        """
        held_out = np.random.default_rng(0).permutation(rows)[: len(rows) // 5]
        if not len(held_out):
            return 0.5
        probabilities = self.probabilities(
            np.setdiff1d(rows, held_out), [self.train[row] for row in held_out]
        )
        return float(best_f1_cuts(probabilities.reshape(-1, 1), self.gold[held_out].reshape(-1, 1))[0])


def tfidf_numbers(train: Sequence[Text], gold: npt.ArrayLike, dev: Sequence[Text]) -> Baseline[Floats]:
    """Ridge regression over TF-IDF: numbers (E,)."""
    from sklearn.linear_model import Ridge

    name, rows = _choose_rows("TF-IDF + ridge regression", train)
    predictions = _fit_and_predict(Ridge(solver="sparse_cg"), train, rows, np.asarray(gold, np.float64), dev)
    return Baseline(name, predictions.astype(np.float64))


def tfidf_cosine(train: Sequence[Text], dev: Sequence[tuple[str, str]]) -> Baseline[Floats]:
    """The cosine of the TF-IDF vectors of a pair's texts (E,). Only word rarity is learned from train."""
    name, rows = _choose_rows("TF-IDF cosine", train)
    weigh = _fit_tfidf(_list_texts(train, rows), words=(1, 1), most_features=MOST_FEATURES)
    return Baseline(name, _cosines(weigh([first for first, _ in dev]), weigh([second for _, second in dev])))


def tfidf_vectors(
    train: Sequence[Text], queries: Sequence[str], documents: Sequence[str]
) -> tuple[str, Any, Any]:
    """The baseline's name, and TF-IDF vectors of queries and documents as sparse rows of length 1. Word
    rarity is learned from train.
    """
    name, rows = _choose_rows("TF-IDF cosine", train)
    weigh = _fit_tfidf(_list_texts(train, rows), words=(1, 1), most_features=MOST_FEATURES)
    return name, weigh(queries), weigh(documents)


def majority_tag(tags: Sequence[Sequence[str]], dev: Sequence[Sequence[str]]) -> Baseline[list[list[str]]]:
    """The most frequent tag of train for every word."""
    most = _most_frequent(Counter(tag for sentence in tags for tag in sentence))
    return Baseline("majority", [[most] * len(words) for words in dev])


def frequent_tags(
    words: Sequence[Sequence[str]], tags: Sequence[Sequence[str]], dev: Sequence[Sequence[str]]
) -> Baseline[list[list[str]]]:
    """Each word's most frequent tag in train. For unknown words "O" or, in a scheme without it, the most
    frequent tag of all. Of equally frequent tags the first by alphabet.
    """
    counts: dict[str, Counter[str]] = {}
    overall: Counter[str] = Counter()
    for sentence, its_tags in zip(words, tags, strict=True):
        overall.update(its_tags)
        for word, tag in zip(sentence, its_tags, strict=True):
            counts.setdefault(word, Counter())[tag] += 1
    best = {word: _most_frequent(tag_counts) for word, tag_counts in counts.items()}
    unknown = "O" if "O" in overall or not overall else _most_frequent(overall)
    return Baseline(
        "most frequent tag of each word", [[best.get(word, unknown) for word in line] for line in dev]
    )


def _most_frequent(counts: Counter[str]) -> str:
    return min(counts, key=lambda tag: (-counts[tag], tag))


def _choose_rows(name: str, train: Sequence[Text], most_rows: int = MOST_ROWS) -> tuple[str, Ints]:
    """The rows to learn from, and the name, with their number if they aren't all."""
    characters = sum(len(row) if isinstance(row, str) else len(row[0]) + len(row[1]) for row in train)
    by_length = len(train) * MOST_CHARACTERS // max(1, characters)
    most = max(1, min(most_rows, MOST_ROWS, by_length))
    if len(train) <= most:
        return name, np.arange(len(train))
    rows = np.sort(np.random.default_rng(0).choice(len(train), most, replace=False))
    return f"{name} ({most:,} of {len(train):,} rows)", rows


def _fit_and_predict(
    learner: Any,
    train: Sequence[Text],
    rows: Ints,
    gold: npt.NDArray[Any],
    dev: Sequence[Text],
    most_features: int = MOST_FEATURES,
    answer: str = "predict",
) -> npt.NDArray[Any]:
    """Fits `learner` on these rows of train and returns its predictions for dev, by its method `answer`."""
    if not dev:
        return np.zeros((0, *gold.shape[1:]))
    weigh = _fit_tfidf(
        _list_texts(train, rows), words=(1, 2), most_features=min(most_features, MOST_FEATURES)
    )
    with warnings.catch_warnings():
        # A baseline that hasn't converged is still a baseline.
        warnings.simplefilter("ignore")
        learner.fit(_make_features([train[row] for row in rows], weigh), gold[rows])
        return np.asarray(getattr(learner, answer)(_make_features(dev, weigh)))


def _list_texts(train: Sequence[Text], rows: Ints) -> list[str]:
    """All texts of these rows, both texts of a pair."""
    chosen = (train[row] for row in rows)
    return [text for row in chosen for text in ((row,) if isinstance(row, str) else row)]


def _fit_tfidf(
    texts: Sequence[str], words: tuple[int, int], most_features: int
) -> Callable[[Sequence[str]], Any]:
    """Returns a function from texts to TF-IDF rows, sparse (E, F) of length 1, fitted on `texts`."""
    from scipy.sparse import csr_array
    from sklearn.feature_extraction.text import TfidfVectorizer

    if not any(text.strip() for text in texts):
        return lambda others: csr_array((len(others), 1))
    vectoriser = TfidfVectorizer(
        ngram_range=words,
        token_pattern=TOKEN,
        sublinear_tf=True,
        max_features=most_features,
        dtype=np.float32,
    )
    vectoriser.fit(texts)
    return lambda others: csr_array(vectoriser.transform(others))


def _make_features(rows: Sequence[Text], weigh: Callable[[Sequence[str]], Any]) -> Any:
    """(E, F) for texts. For pairs (E, 3F + 1): both texts, their absolute difference, their cosine."""
    from scipy.sparse import csr_array, hstack

    if isinstance(rows[0], str):
        return weigh([str(row) for row in rows])
    first, second = (weigh([row[side] for row in rows]) for side in (0, 1))
    cosine = csr_array(_cosines(first, second)[:, None].astype(np.float32))
    return csr_array(hstack([first, second, abs(first - second), cosine]))


def _cosines(first: Any, second: Any) -> Floats:
    """(E,): cosines of rows that have length 1, or 0 for a text without a known word."""
    return np.asarray(first.multiply(second).sum(axis=1), np.float64).ravel()


_TREES, _FEWEST_ROUNDS, _MOST_ROUNDS = 4000, 10, 60  # of all folds and classes together: some seconds
_NEVER = 1e-6  # the probability of a class that the rows learned from don't have


def boosted_rounds(outputs: int, folds: int) -> int:
    """How many boosting rounds there is time for, with one tree for each output; 0 if they would be
    too few.
    """
    rounds = _TREES // (max(outputs, 1) * folds)
    return min(rounds, _MOST_ROUNDS) if rounds >= _FEWEST_ROUNDS else 0


def boosted_classes(
    train: Float32s, gold: npt.ArrayLike, dev: Float32s, classes: int, rounds: int
) -> Float32s:
    """Logits (E, C) for `dev`, given class numbers (E,) for `train`."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    gold = np.asarray(gold, np.int64)
    probabilities = np.full((len(dev), classes), _NEVER)
    known = np.unique(gold)
    if len(known) == 1:
        probabilities[:, known] = 1.0
    else:
        learner = HistGradientBoostingClassifier(**_settings(len(train), rounds)).fit(train, gold)
        probabilities[:, learner.classes_] = learner.predict_proba(dev).clip(_NEVER)
    logits: Float32s = np.log(probabilities).astype(np.float32)
    return logits


def boosted_labels(train: Float32s, gold: npt.ArrayLike, dev: Float32s, rounds: int) -> Float32s:
    """Log-odds (E, C) for `dev`, given truth values (E, C) for `train`."""
    columns = [boosted_classes(train, label, dev, 2, rounds) for label in np.asarray(gold, np.int64).T]
    odds: Float32s = np.stack([column[:, 1] - column[:, 0] for column in columns], axis=1)
    return odds


def boosted_numbers(train: Float32s, gold: npt.ArrayLike, dev: Float32s, rounds: int) -> Float32s:
    """Numbers (E, 1) for `dev`, given numbers (E,) for `train`."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    learner = HistGradientBoostingRegressor(**_settings(len(train), rounds))
    predictions: Float32s = (
        learner.fit(train, np.asarray(gold, np.float64)).predict(dev)[:, None].astype(np.float32)
    )
    return predictions


def _settings(rows: int, rounds: int) -> dict[str, Any]:
    """The learner's settings; leaves may be small only if there are few rows."""
    return {
        "max_iter": rounds,
        "learning_rate": 0.2,
        "max_leaf_nodes": 8,
        "min_samples_leaf": min(20, max(2, rows // 50)),
        "early_stopping": False,
        "random_state": 0,
    }


_FUNCTION_WORDS = """a about after all also an and any are as at be been before being between both but by can
    could did do does during each for from had has have he her him his how if in into is it its many may more
    most much no not of on only or other over s she some such than that the their them then there these they
    this those through to under until up was were what when where which while who whom whose why will with
    would"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())

ASKS_FOR_A_NUMBER = re.compile(
    r"\bwhen\b|\bhow (many|much|old|long|far|tall|large|big|often)\b"
    r"|\b(what|which) (\w+ )?(year|date|day|month|percentage|percent|number|century|decade)\b",
    re.IGNORECASE,
)
SENTENCE = re.compile(r"[^\s].*?(?:[.!?](?=\s)|\Z|\n)", re.DOTALL)
NUMBER = re.compile(r"\$?\d[\d.,:/–-]*(?<![.,])%?")

# "the Norman conquest of England" is no name, "University of Notre Dame" is one.
NAME = re.compile(r"[A-Z][\w'’.-]*(?:\s+(?:of|the|and|de|von|&)(?:\s+the)?(?=\s+[A-Z])|\s+[A-Z][\w'’.-]*)*")

Span = tuple[int, int]  # characters of the passage


def lexical_answers(questions: Sequence[tuple[str, str]]) -> Baseline[list[str]]:
    """An answer for each (question, passage), cut out of the passage: a whole sentence if nothing in it is
    new, "" for an empty passage.
    """
    answers = []
    for question, passage in questions:
        start, end = lexical_answer(question, passage)
        answers.append(passage[start:end])
    return Baseline("sentence with most shared words", answers)


def lexical_answer(question: str, passage: str) -> Span:
    """(start, end) of the answer in characters of the passage."""
    question_words = {word for word in _words(question) if word not in FUNCTION_WORDS}
    start, end = _find_best_sentence(question_words, passage)
    finders: tuple[Callable[[str], Iterable[Span]], ...] = (
        _find_names,
        lambda text: _find_runs(text, question_words),
    )
    if ASKS_FOR_A_NUMBER.search(question):
        finders = (lambda text: (match.span() for match in NUMBER.finditer(text)), *finders)
    sentence = passage[start:end]
    for find in finders:
        new_spans = [
            span for span in find(sentence) if not question_words & set(_words(sentence[slice(*span)]))
        ]
        if new_spans:
            first, last = max(new_spans, key=lambda span: (len(_words(sentence[slice(*span)])), -span[0]))
            return start + first, start + last
    return start, end


def _find_best_sentence(question_words: set[str], passage: str) -> Span:
    counts = Counter(_words(passage))
    best, best_score = (0, 0), -1.0
    for match in SENTENCE.finditer(passage):
        shared = question_words & set(_words(match[0]))
        score = sum(log(1 + 1 / counts[word]) for word in sorted(shared))
        if score > best_score:
            best, best_score = match.span(), score
    return best


def _words(text: str) -> list[str]:
    return [word.casefold() for word in WORD.findall(text)]


def _find_names(sentence: str) -> Iterable[Span]:
    """Finds runs of capitalised words, without a function word that merely opens the sentence."""
    for match in NAME.finditer(sentence):
        if match[0].casefold() not in FUNCTION_WORDS:
            yield match.start(), match.start() + len(match[0].rstrip(".'’-"))


def _find_runs(sentence: str, question_words: set[str]) -> Iterable[Span]:
    """Finds stretches without function words, words of the question, and punctuation."""
    start, end = -1, -1
    for match in WORD.finditer(sentence):
        word = match[0].casefold()
        ends = word in FUNCTION_WORDS or word in question_words
        if start >= 0 and (ends or sentence[end : match.start()].strip(" -'’")):
            yield start, end
            start = -1
        if not ends:
            start, end = (match.start() if start < 0 else start), match.end()
    if start >= 0:
        yield start, end
