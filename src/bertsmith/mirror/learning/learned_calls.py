"""Recorded calls as what is learned from them: a text, the values of its answer, how sure the teacher was;
and which of them are learned from, which choose, and which prove.

How sure: from the probabilities that the teacher gave, or from those of its tokens. A token's probability
tells of the values that begin like it: of {"intent": "card"} the token `card` had 0.8, and `transfer` 0.15
beside it. What tokens had that begin none of the values is left out.

Calls are divided by time, then by text:

    oldest … newest     train and dev: everything but calibration, each text once, divided by a hash of it
                        calibration: the latest calls that no training has used, as often as they came, of all
                        versions that came at a time; where there is no traffic, rows of the labelled file by
                        chance, for a file may be sorted

Calibration calls are used once. What proved something may be learned from by the next training.
"""

import hashlib
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from json import JSONDecodeError
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

import orjson

from bertsmith.errors import InputError
from bertsmith.mirror.call import AGAIN, LABELLED, UNDATED, Call, Completion, Json
from bertsmith.mirror.fields import AnswerShape, Field, Values, path_of, written
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.understand import SiteProfile
from bertsmith.mirror.store import Store

ValueShares = list[tuple[Any, float]]  # values with probabilities that add up to 1
_LIKELY = 0.5  # of all probability has to be that of the field's values
_BLANKS = " \t\n\r"
_LAST = 20  # calls of a version, by which its pace is told
MIN_TEXTS = 50  # calls to learn from
AUDIT = "audit"  # the source of calls that a student answered, and the LLM too


def read_value_shares(answered: Completion, shape: AnswerShape) -> dict[str, ValueShares]:
    """By path, for fields of one value of several; empty where the teacher said nothing of it."""
    single = [each for each in shape.fields if each.kind in ("enum", "boolean", "ordinal")]
    if answered.probabilities:
        return _shares_from_probabilities(answered.probabilities, single)
    if answered.logprobs:
        return _shares_from_tokens(answered.logprobs, single)
    return {}


def _shares_from_probabilities(
    probabilities: Mapping[str, list[tuple[Json, float]]], fields: list[Field]
) -> dict[str, ValueShares]:
    found = {}
    for field in fields:
        given = probabilities.get(field.path, ())
        known = {written(value) for value in field.classes}
        shares = [(value, share) for value, share in given if written(value) in known]
        is_likely = sum(share for _, share in shares) >= _LIKELY * sum(share for _, share in given)
        if is_likely and (spread := _normalise(shares)):
            found[field.path] = spread
    return found


def _shares_from_tokens(logprobs: list[Json], fields: list[Field]) -> dict[str, ValueShares]:
    """Where the tokens' texts are the answer's JSON, and each has a number."""
    text = "".join(str(token) for token, *_ in logprobs)
    try:
        places = dict(
            _locate_values(text, _skip_blanks(text, 0), ())[0]
        )  # by path, each value's first letter
        shares = {
            field.path: _share_token_probability(field, text, places[field.path], logprobs)
            for field in fields
            if field.path in places
        }
    except (JSONDecodeError, IndexError, RecursionError, TypeError, ValueError):
        return {}
    return {path: spread for path, each in shares.items() if (spread := _normalise(each))}


def _share_token_probability(field: Field, text: str, place: int, logprobs: list[Json]) -> ValueShares:
    """Along the tokens of the value that was answered, by the chain rule: at each what its rivals had is that
    of the values which they go on to, until one value alone begins like the answer.

    Values often share their first tokens (card_arrival, card_lost): the first tells nothing of which it is.
    """
    starts = [0, *accumulate(len(token) for token, *_ in logprobs)]
    # As they stand in JSON: by its marks a text differs from null, and `card` from the beginning of
    # `card_lost`.
    contents = [
        (value, orjson.dumps(value).decode() if isinstance(value, str | bool | int | float | None) else "")
        for value in field.classes
    ]
    sums: dict[bytes, tuple[Any, float]] = {}
    answered, left = "", 1.0  # letters of the value so far, and their probability

    def add(letters: str, share: float) -> None:
        values = _match_prefix(contents, letters)
        for value in values:
            _add_share(sums, value, share / len(values))

    for number in range(bisect_right(starts, place) - 1, len(logprobs)):
        token, logprob, others = logprobs[number]
        before = text[starts[number] : max(place, starts[number])]
        for other, own in others:
            if other != token and str(other).startswith(before) and len(other) > len(before):
                add(answered + str(other)[len(before) :], left * math.exp(min(float(own), 0.0)))
        answered += str(token)[len(before) :]
        left *= math.exp(min(float(logprob), 0.0))
        if len(_match_prefix(contents, answered)) < 2:
            break
    add(answered, left)
    return list(sums.values()) if sum(share for _, share in sums.values()) >= _LIKELY else []


def _add_share(sums: dict[bytes, tuple[Any, float]], value: Any, share: float) -> None:
    """To what the value has so far."""
    key = written(value)
    sums[key] = value, sums.get(key, (value, 0.0))[1] + share


def _match_prefix(contents: Sequence[tuple[Any, str]], letters: str) -> list[Any]:
    """The values that begin with these letters; where letters go beyond a value, the longest such."""
    if values := [value for value, content in contents if content.startswith(letters)]:
        return values
    ended = [(len(content), value) for value, content in contents if content and letters.startswith(content)]
    return [max(ended, key=lambda pair: pair[0])[1]] if ended else []


def _normalise(shares: ValueShares) -> ValueShares:
    total = sum(share for _, share in shares)
    return [(value, share / total) for value, share in shares] if total > 0 else []


def _locate_values(text: str, at: int, keys: tuple[str, ...]) -> tuple[list[tuple[str, int]], int]:
    """Those of the value at this place, and where it ends. Raises IndexError and JSONDecodeError."""
    if text[at] == '"':
        _, end = scanstring(text, at + 1, True)
        return [(path_of(keys), at)], end
    if text[at] == "{":
        return _locate_object_values(text, _skip_blanks(text, at + 1), keys)
    if text[at] == "[":
        end = _find_list_end(text, at)
        return [], end
    end = at
    while end < len(text) and text[end] not in ",}]" + _BLANKS:
        end += 1
    return [(path_of(keys), at)], end


def _locate_object_values(text: str, at: int, keys: tuple[str, ...]) -> tuple[list[tuple[str, int]], int]:
    found: list[tuple[str, int]] = []
    while text[at] != "}":
        name, at = scanstring(text, at + 1, True)
        at = _skip_blanks(text, _skip_blanks(text, at) + 1)
        inner, at = _locate_values(text, at, (*keys, name))
        found += inner
        at = _skip_blanks(text, at)
        if text[at] == ",":
            at = _skip_blanks(text, at + 1)
    return found, at + 1


def _find_list_end(text: str, at: int) -> int:
    depth = 0
    while True:
        if text[at] == '"':
            _, at = scanstring(text, at + 1, True)
            continue
        depth += (text[at] in "[{") - (text[at] in "]}")
        at += 1
        if not depth:
            return at


def _skip_blanks(text: str, at: int) -> int:
    while text[at] in _BLANKS:
        at += 1
    return at


@dataclass(frozen=True)
class LearnedCall:
    """`values` are those of the answer, as its shape reads them; `spreads` has for some fields the
    probability of each value, as the teacher said it. `weight` is what the call counts for among those
    that are learned together: `Call.weight`, or `Call.site_weight` at a time when several of their versions
    came: a prompt that took another's place is alone from then on.
    """

    id: str
    began: float
    source: str
    text: str
    values: Values
    spreads: Mapping[str, ValueShares]
    weight: float | None = None
    version: str = ""


@dataclass(frozen=True)
class LoadedCalls:
    """`calls` by time. `strange` more stand in no template, and the LLM goes on answering their like. `again`
    were asked once more to see whether the teacher answers alike.
    """

    calls: list[LearnedCall]
    strange: int
    again: list[LearnedCall]


def read_calls(store: Store, understood: SiteProfile) -> LoadedCalls:
    """All calls of these versions."""
    calls, again, strange = list[LearnedCall](), list[LearnedCall](), 0
    shape = understood.shape
    came = dict[str, tuple[float, float]]()  # from when to when, in seconds since 1970
    for each in understood.versions:
        # While a student answers, few calls are recorded: a version has ended when none has come for as long
        # as the last ones took.
        latest = store.latest(each.version, _LAST)
        pause = max((each.ended - call.began for call in latest), default=0.0)
        came[each.version] = each.began, each.ended + pause
    for version in understood.versions:
        template = understood.templates.get(version.version)
        for call in store.calls(version.version):
            text = None if template is None else template.input_of(call.request)
            if text is None:
                strange += call.source != AGAIN
                continue
            answered = call.completion
            others = (times for name, times in came.items() if name != version.version)
            weight = call.weight
            if weight is not None and any(first <= call.began <= last for first, last in others):
                # An earlier layout of the store doesn't know it: then the call proves nothing.
                weight = call.site_weight or 0.0
            learned = LearnedCall(
                call.id,
                call.began,
                call.source,
                text,
                shape.read(answered.value),
                read_value_shares(answered, shape),
                weight,
                version.version,
            )
            (again if call.source == AGAIN else calls).append(learned)
    return LoadedCalls(sorted(calls, key=lambda each: (each.began, each.id)), strange, again)


def join_by_text(calls: Iterable[LearnedCall], shape: AnswerShape) -> list[LearnedCall]:
    """One a text, in the order in which texts came first. Where its calls were answered differently, the
    value is the one given most, of equals the latest, and the spread says how often each was.
    """
    by_text: dict[str, list[LearnedCall]] = {}
    for call in calls:
        by_text.setdefault(call.text, []).append(call)
    return [_join_calls(same, shape) if len(same) > 1 else same[0] for same in by_text.values()]


def _join_calls(same: Sequence[LearnedCall], shape: AnswerShape) -> LearnedCall:
    values, spreads = dict(same[-1].values), dict[str, ValueShares]()
    for field in shape.fields:
        given = [call.values[field.path] for call in same]
        counts = Counter(written(value) for value in given)
        most = max(counts.values())
        values[field.path] = next(v for v in reversed(given) if counts[written(v)] == most)
        if len(counts) > 1 or any(field.path in call.spreads for call in same):
            sums: dict[bytes, tuple[Any, float]] = {}
            for call in same:
                for value, share in call.spreads.get(field.path) or [(call.values[field.path], 1.0)]:
                    _add_share(sums, value, share / len(same))
            spreads[field.path] = list(sums.values())
    return replace(same[-1], values=values, spreads=spreads)


def hash_fraction(text: str, seed: int) -> float:
    """A number from 0 to 1 that a text always gets: which part it falls into."""
    digest = hashlib.sha256(f"{seed}\0{text}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


@dataclass(frozen=True)
class CallSplit:
    """`train` and `dev` have each text once; `learned` are the calls that they come of, and `judging` the ids
    of those in dev.
    """

    train: list[LearnedCall]
    dev: list[LearnedCall]
    calibration: list[LearnedCall]
    learned: list[LearnedCall]
    judging: frozenset[str]


def split_calls(
    calls: Sequence[LearnedCall], used: Collection[str], shape: AnswerShape, settings: LearnSettings
) -> CallSplit:
    """`calls` by time, `used` the ids of those that earlier trainings had. Raises InputError for too few."""
    fresh = [call for call in calls if call.id not in used]
    fresh = _exclude_shared_periods(sample_like_traffic(fresh, settings.seed), calls, used, settings.seed)
    dated = [call for call in fresh if call.source != UNDATED]  # the others may be older than what was used
    traffic = [call for call in dated if call.source != LABELLED]
    if all(call.source in (LABELLED, UNDATED) for call in calls):
        traffic = sorted(dated, key=lambda call: hash_fraction(call.id, settings.seed + 3))
    wanted = min(round(settings.calibration_share * len(calls)), settings.most_calibration)
    calibration = traffic[-wanted:] if wanted else []
    return split_by_ids(calls, {call.id for call in calibration}, shape, settings)


def _exclude_shared_periods(
    fresh: Sequence[LearnedCall], calls: Sequence[LearnedCall], used: Collection[str], seed: int
) -> list[LearnedCall]:
    """Without calls of times at which another version came whose calls are used: versions that were merged
    after each had its own training. What is left of one alone is not like the traffic of both.
    """
    traffic = [call for call in calls if call.source not in (LABELLED, UNDATED)]
    first, last = dict[str, float](), dict[str, float]()
    for call in traffic:
        first[call.version] = min(call.began, first.get(call.version, math.inf))
    for call in sample_like_traffic([call for call in traffic if call.id in used], seed):
        last[call.version] = max(call.began, last.get(call.version, -math.inf))

    def is_alone(call: LearnedCall) -> bool:
        return any(
            first[version] <= call.began <= end for version, end in last.items() if version != call.version
        )

    return [call for call in fresh if not is_alone(call)]


def sample_like_traffic(calls: Sequence[LearnedCall], seed: int) -> list[LearnedCall]:
    """Calls that are like the traffic. While a student answers, of its calls only audits are recorded, and of
    the LLM's all: these would be too many. Each call therefore stays with the probability `weight`, which was
    settled when it was answered, whatever became of the mode, the share and the audits later. What an earlier
    layout of the store has between audits is without weights, and proves nothing.
    """
    unknown = [call.began for call in calls if call.source == AUDIT and call.weight is None]
    first, last = (min(unknown), max(unknown)) if unknown else (math.inf, -math.inf)

    def stays(call: LearnedCall) -> bool:
        return is_drawn(call, seed) and not (call.weight is None and first <= call.began <= last)

    return [call for call in calls if stays(call)]


def is_drawn(call: LearnedCall | Call, seed: int) -> bool:
    """Whether a call stays, by chance, among those that are like the traffic."""
    return call.weight is None or hash_fraction(call.id, seed + 2) < call.weight


def split_by_ids(
    calls: Sequence[LearnedCall], calibration: Collection[str], shape: AnswerShape, settings: LearnSettings
) -> CallSplit:
    """The same with the ids of the calibration calls given, as a training that goes on has them."""
    calibration = set(calibration)
    learned = [call for call in calls if call.id not in calibration]
    dev = [call for call in learned if hash_fraction(call.text, settings.seed) < settings.dev_share]
    judging = frozenset(call.id for call in dev)
    parts = CallSplit(
        join_by_text([call for call in learned if call.id not in judging], shape),
        join_by_text(dev, shape),
        [call for call in calls if call.id in calibration],
        learned,
        judging,
    )
    if len(parts.train) < MIN_TEXTS or not parts.dev:
        raise InputError(
            f"There are {len(calls):,} calls with {len(parts.train) + len(parts.dev):,} different texts to "
            f"learn from; a training needs at least {MIN_TEXTS} texts beside those that it proves with. "
            "Record more calls, or have a file labelled by bertsmith mirror label."
        )
    return parts


def group_ids_by_use(parts: CallSplit) -> Mapping[str, list[str]]:
    """Ids by what their calls are for."""
    return {
        "train": [call.id for call in parts.learned if call.id not in parts.judging],
        "dev": sorted(parts.judging),
        "calibration": [call.id for call in parts.calibration],
    }
