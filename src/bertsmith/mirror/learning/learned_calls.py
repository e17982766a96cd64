"""Recorded calls as training examples (a text, the values of its answer, the teacher's probabilities), and
their split into train, dev and calibration.

The probabilities are those that the teacher gave, or come from its tokens' log probabilities. A token counts
for the values that begin with it: in {"intent": "card"} the token `card` had 0.8, and `transfer` beside it
0.15. Tokens that begin no value are left out.

Calls are split by time, then by text:

    oldest … newest     train and dev: everything but calibration, each text once, divided by a hash of it
                        calibration: the latest calls that no training has used, as often as they came, of all
                        versions that came at a time; where there is no traffic, rows of the labelled file by
                        chance, for a file may be sorted; and recorded inputs that were asked again

Calibration calls are used once. The next training may learn from them. Read `read_calls` and `split_calls`
first.
"""

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
from bertsmith.mirror.answering.replays import ReplayStore
from bertsmith.mirror.call import AGAIN, LABELLED, REPLAYED, UNDATED, Call, Completion, Json
from bertsmith.mirror.fields import AnswerShape, Field, Values, canonical_json, json_path
from bertsmith.mirror.identity import hash_fraction
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.understand import SiteProfile
from bertsmith.mirror.store import Store

ValueShares = list[tuple[Any, float]]  # values with probabilities that add up to 1
_LIKELY = 0.5  # the least share of the probability that the field's values must have
_BLANKS = " \t\n\r"
_LAST = 20  # calls of a version that tell how often it is called
MIN_TEXTS = 50  # calls to learn from
AUDIT = "audit"  # the source of calls that a student answered, and the LLM too


def read_value_shares(completion: Completion, shape: AnswerShape) -> dict[str, ValueShares]:
    """The teacher's probability of each value, by path, for fields with one of several values; empty where
    the answer came without probabilities.
    """
    single = [field for field in shape.fields if field.kind in ("enum", "boolean", "ordinal")]
    if completion.probabilities:
        return _shares_from_probabilities(completion.probabilities, single)
    if completion.logprobs:
        return _shares_from_tokens(completion.logprobs, single)
    return {}


def _shares_from_probabilities(
    probabilities: Mapping[str, list[tuple[Json, float]]], fields: list[Field]
) -> dict[str, ValueShares]:
    by_path = {}
    for field in fields:
        reported = probabilities.get(field.path, ())
        allowed = {canonical_json(value) for value in field.classes}
        shares = [(value, share) for value, share in reported if canonical_json(value) in allowed]
        is_likely = sum(share for _, share in shares) >= _LIKELY * sum(share for _, share in reported)
        if is_likely and (normalised := _normalise(shares)):
            by_path[field.path] = normalised
    return by_path


def _shares_from_tokens(logprobs: list[Json], fields: list[Field]) -> dict[str, ValueShares]:
    """From (token, log probability, alternatives); empty unless the tokens are the answer's JSON."""
    text = "".join(str(token) for token, *_ in logprobs)
    try:
        offsets = dict(_locate_values(text, _skip_blanks(text, 0), ())[0])  # by path, where each value begins
        shares = {
            field.path: _share_token_probability(field, text, offsets[field.path], logprobs)
            for field in fields
            if field.path in offsets
        }
    except (JSONDecodeError, IndexError, RecursionError, TypeError, ValueError):
        return {}
    return {path: spread for path, weights in shares.items() if (spread := _normalise(weights))}


def _share_token_probability(field: Field, text: str, offset: int, logprobs: list[Json]) -> ValueShares:
    """The probabilities of a field's values by the chain rule, along the tokens of the answered value. At
    each token the alternatives' probability goes to the values that they begin, until only one value begins
    like the answer.

    Values often share their first tokens (card_arrival, card_lost), which then don't tell them apart.
    """
    starts = [0, *accumulate(len(token) for token, *_ in logprobs)]
    # As JSON: the quotation marks tell a text from null, and `card` from the beginning of `card_lost`.
    contents = [
        (value, orjson.dumps(value).decode() if isinstance(value, str | bool | int | float | None) else "")
        for value in field.classes
    ]
    sums: dict[bytes, tuple[Any, float]] = {}
    prefix, left = "", 1.0  # the answered value so far, and its probability

    def add(prefix: str, share: float) -> None:
        values = _match_prefix(contents, prefix)
        for value in values:
            _add_share(sums, value, share / len(values))

    for number in range(bisect_right(starts, offset) - 1, len(logprobs)):
        token, logprob, others = logprobs[number]
        before = text[starts[number] : max(offset, starts[number])]
        for other, own in others:
            if other != token and str(other).startswith(before) and len(other) > len(before):
                add(prefix + str(other)[len(before) :], left * math.exp(min(float(own), 0.0)))
        prefix += str(token)[len(before) :]
        left *= math.exp(min(float(logprob), 0.0))
        if len(_match_prefix(contents, prefix)) < 2:
            break
    add(prefix, left)
    return list(sums.values()) if sum(share for _, share in sums.values()) >= _LIKELY else []


def _add_share(sums: dict[bytes, tuple[Any, float]], value: Any, share: float) -> None:
    """Adds a share to what the value has so far."""
    key = canonical_json(value)
    sums[key] = value, sums.get(key, (value, 0.0))[1] + share


def _match_prefix(contents: Sequence[tuple[Any, str]], prefix: str) -> list[Any]:
    """The values that begin with `prefix`; without any, the longest value that `prefix` begins with."""
    if values := [value for value, content in contents if content.startswith(prefix)]:
        return values
    ended = [(len(content), value) for value, content in contents if content and prefix.startswith(content)]
    return [max(ended, key=lambda pair: pair[0])[1]] if ended else []


def _normalise(shares: ValueShares) -> ValueShares:
    total = sum(share for _, share in shares)
    return [(value, share / total) for value, share in shares] if total > 0 else []


def _locate_values(text: str, at: int, keys: tuple[str, ...]) -> tuple[list[tuple[str, int]], int]:
    """(path, offset) of each value within the JSON value at offset `at`, and where that ends. Raises
    IndexError and JSONDecodeError.
    """
    if text[at] == '"':
        _, end = scanstring(text, at + 1, True)
        return [(json_path(keys), at)], end
    if text[at] == "{":
        return _locate_object_values(text, _skip_blanks(text, at + 1), keys)
    if text[at] == "[":
        end = _find_list_end(text, at)
        return [], end
    end = at
    while end < len(text) and text[end] not in ",}]" + _BLANKS:
        end += 1
    return [(json_path(keys), at)], end


def _locate_object_values(text: str, at: int, keys: tuple[str, ...]) -> tuple[list[tuple[str, int]], int]:
    offsets: list[tuple[str, int]] = []
    while text[at] != "}":
        name, at = scanstring(text, at + 1, True)
        at = _skip_blanks(text, _skip_blanks(text, at) + 1)
        inner, at = _locate_values(text, at, (*keys, name))
        offsets += inner
        at = _skip_blanks(text, at)
        if text[at] == ",":
            at = _skip_blanks(text, at + 1)
    return offsets, at + 1


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
    """A recorded call as an example. `values` are the answer's, as its shape reads them; `probabilities` has
    the teacher's probability of each value for some fields, by path. `weight` is the probability with which
    the call stays among those that are like the traffic: `Call.weight`, or `Call.site_weight` while several
    of the learned versions were in use at the same time.
    """

    id: str
    began: float
    source: str
    text: str
    values: Values
    probabilities: Mapping[str, ValueShares]
    weight: float | None = None
    version: str = ""


@dataclass(frozen=True)
class LoadedCalls:
    """All `calls` in the order of time. `unmatched` counts the calls that fit no template: the LLM goes on
    answering such calls. `again` are inputs asked once more, to measure the teacher's contradictions.
    """

    calls: list[LearnedCall]
    unmatched: int
    again: list[LearnedCall]


def read_calls(store: Store, profile: SiteProfile) -> LoadedCalls:
    """Reads all calls of the site's versions as examples; without a recorded call whose input was asked again
    under one of them, since the new answer may prove a student, which then mustn't know the input.
    """
    calls, again, unmatched = list[LearnedCall](), list[LearnedCall](), 0
    shape = profile.shape
    periods = dict[str, tuple[float, float]]()  # when each version was in use, in seconds since 1970
    for version in profile.versions:
        # While a student answers, few calls are recorded: a version has ended when no call has come for as
        # long as its last ones took.
        latest = store.latest(version.version, _LAST)
        pause = max((version.ended - call.began for call in latest), default=0.0)
        periods[version.version] = version.began, version.ended + pause
    for version in profile.versions:
        template = profile.templates.get(version.version)
        for call in store.calls(version.version):
            text = None if template is None else template.input_of(call.request)
            if text is None:
                unmatched += call.source != AGAIN
                continue
            completion = call.completion
            others = (times for name, times in periods.items() if name != version.version)
            weight = call.weight
            if weight is not None and any(first <= call.began <= last for first, last in others):
                # Unknown in an earlier layout of the store: then the call proves nothing.
                weight = call.site_weight or 0.0
            learned = LearnedCall(
                call.id,
                call.began,
                call.source,
                text,
                shape.read(completion.value),
                read_value_shares(completion, shape),
                weight,
                version.version,
            )
            (again if call.source == AGAIN else calls).append(learned)
    recorded = ReplayStore(store).recorded(version.version for version in profile.versions)
    twice = {recorded[call.id] for call in calls if call.id in recorded}
    calls = [call for call in calls if call.id not in twice]
    return LoadedCalls(sorted(calls, key=lambda call: (call.began, call.id)), unmatched, again)


def join_by_text(calls: Iterable[LearnedCall], shape: AnswerShape) -> list[LearnedCall]:
    """One example for each text, in the order in which the texts first came. Where answers differ, a field
    has its most frequent value, of equally frequent ones the latest, and `probabilities` has the frequencies.
    """
    by_text: dict[str, list[LearnedCall]] = {}
    for call in calls:
        by_text.setdefault(call.text, []).append(call)
    return [_join_calls(same, shape) if len(same) > 1 else same[0] for same in by_text.values()]


def _join_calls(same: Sequence[LearnedCall], shape: AnswerShape) -> LearnedCall:
    values, probabilities = dict(same[-1].values), dict[str, ValueShares]()
    for field in shape.fields:
        answers = [call.values[field.path] for call in same]
        counts = Counter(map(canonical_json, answers))
        most = max(counts.values())
        values[field.path] = next(v for v in reversed(answers) if counts[canonical_json(v)] == most)
        if len(counts) > 1 or any(field.path in call.probabilities for call in same):
            sums: dict[bytes, tuple[Any, float]] = {}
            for call in same:
                for value, share in call.probabilities.get(field.path) or [(call.values[field.path], 1.0)]:
                    _add_share(sums, value, share / len(same))
            probabilities[field.path] = list(sums.values())
    return replace(same[-1], values=values, probabilities=probabilities)


@dataclass(frozen=True)
class CallSplit:
    """The split of the calls. `train` and `dev` have each text once; `learned` are the calls that both come
    from, and `judging` the ids of those in dev. Where nothing is learned but names, dev has all calls, as
    often as they came.
    """

    train: list[LearnedCall]
    dev: list[LearnedCall]
    calibration: list[LearnedCall]
    learned: list[LearnedCall]
    judging: frozenset[str]


def split_calls(
    calls: Sequence[LearnedCall], used: Collection[str], shape: AnswerShape, settings: LearnSettings
) -> CallSplit:
    """Splits `calls`, which are in the order of time; `used` are the ids of calls that earlier trainings
    used. Raises InputError where there are too few.
    """
    fresh = [call for call in calls if call.id not in used]
    fresh = exclude_shared_periods(sample_like_traffic(fresh, settings.seed), calls, used, settings.seed)
    # An undated call may be older than the used ones.
    dated = [call for call in fresh if call.source != UNDATED]
    traffic = [call for call in dated if call.source != LABELLED]
    if all(call.source in (LABELLED, UNDATED) for call in calls):
        traffic = sorted(dated, key=lambda call: hash_fraction(call.id, settings.seed + 3))
    # Recorded inputs that were asked again are kept for the proof, but for those of dev, by which it is
    # planned: the other former calls teach.
    replayed = [
        call
        for call in traffic
        if call.source == REPLAYED and hash_fraction(call.text, settings.seed) >= settings.dev_share
    ]
    traffic = [call for call in traffic if call.source != REPLAYED]
    others = sum(call.source != REPLAYED for call in calls)
    count = min(round(settings.calibration_share * others), settings.most_calibration)
    calibration = (replayed + (traffic[-count:] if count else []))[-settings.most_calibration :]
    return split_by_ids(calls, {call.id for call in calibration}, shape, settings)


def exclude_shared_periods(
    fresh: Sequence[LearnedCall], calls: Sequence[LearnedCall], used: Collection[str], seed: int
) -> list[LearnedCall]:
    """Leaves out calls of times when another version was in use whose calls are used already, as with
    versions merged after separate trainings: the calls left of one version are not like the traffic of both.
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
    """A sample of the calls that is distributed like the traffic. While a student answers, only the audits of
    its calls are recorded, but all calls of the LLM, which would be too many. Each call therefore stays with
    the probability `weight`, which was fixed when it was answered. Calls that an earlier layout of the store
    recorded between audits have no weights, and are left out.
    """
    unknown = [call.began for call in calls if call.source == AUDIT and call.weight is None]
    first, last = (min(unknown), max(unknown)) if unknown else (math.inf, -math.inf)

    def stays(call: LearnedCall) -> bool:
        return is_drawn(call, seed) and not (call.weight is None and first <= call.began <= last)

    return [call for call in calls if stays(call)]


def is_drawn(call: LearnedCall | Call, seed: int) -> bool:
    """Whether a call stays in a sample that is distributed like the traffic; by a hash of its id."""
    return call.weight is None or hash_fraction(call.id, seed + 2) < call.weight


def split_by_ids(
    calls: Sequence[LearnedCall], calibration: Collection[str], shape: AnswerShape, settings: LearnSettings
) -> CallSplit:
    """Splits calls whose calibration ids are given, as in a resumed training. Raises InputError where there
    are too few texts.
    """
    if settings.from_names:
        dev = sample_like_traffic(calls, settings.seed)
        return CallSplit([], dev, [], dev, frozenset(call.id for call in dev))
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
            "Record more calls, or have a file labelled by bertsmith mirror label. For a first forecast, by "
            "the names of the values: --from-names."
        )
    return parts


def group_ids_by_use(parts: CallSplit) -> Mapping[str, list[str]]:
    """The ids of the calls of train, dev and calibration."""
    return {
        "train": [call.id for call in parts.learned if call.id not in parts.judging],
        "dev": sorted(parts.judging),
        "calibration": [call.id for call in parts.calibration],
    }
