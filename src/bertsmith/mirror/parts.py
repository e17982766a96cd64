"""Calls to learn from, to choose by, and to prove by: divided by time, then by text.

    oldest … newest     train and dev: everything but calibration, each text once, divided by a hash of it
                        calibration: the latest calls that no training has used, as often as they came, of all
                        versions that came at a time; where there is no traffic, rows of the labelled file by
                        chance, for a file may be sorted

Calibration calls are used once. What proved something may be learned from by the next training.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bertsmith.errors import InputError
from bertsmith.mirror.call import LABELLED, UNDATED, Call
from bertsmith.mirror.fields import AnswerShape
from bertsmith.mirror.learn_settings import LearnSettings
from bertsmith.mirror.learned_calls import LearnedCall, once_each, part_of

FEWEST = 50  # calls to learn from
AUDIT = "audit"  # the source of calls that a student answered, and the LLM too


@dataclass(frozen=True)
class Parts:
    """`train` and `dev` have each text once; `learned` are the calls that they come of, and `judging` the ids
    of those in dev.
    """

    train: list[LearnedCall]
    dev: list[LearnedCall]
    calibration: list[LearnedCall]
    learned: list[LearnedCall]
    judging: frozenset[str]


def divide(
    calls: Sequence[LearnedCall], used: Collection[str], shape: AnswerShape, settings: LearnSettings
) -> Parts:
    """`calls` by time, `used` the ids of those that earlier trainings had. Raises InputError for too few."""
    fresh = [call for call in calls if call.id not in used]
    fresh = _beside_others(as_they_came(fresh, settings.seed), calls, used, settings.seed)
    dated = [call for call in fresh if call.source != UNDATED]  # the others may be older than what was used
    traffic = [call for call in dated if call.source != LABELLED]
    if all(call.source in (LABELLED, UNDATED) for call in calls):
        traffic = sorted(dated, key=lambda call: part_of(call.id, settings.seed + 3))
    wanted = min(round(settings.calibration_share * len(calls)), settings.most_calibration)
    calibration = traffic[-wanted:] if wanted else []
    return by_ids(calls, {call.id for call in calibration}, shape, settings)


def _beside_others(
    fresh: Sequence[LearnedCall], calls: Sequence[LearnedCall], used: Collection[str], seed: int
) -> list[LearnedCall]:
    """Without calls of times at which another version came whose calls are used: versions that were merged
    after each had its own training. What is left of one alone is not like the traffic of both.
    """
    traffic = [call for call in calls if call.source not in (LABELLED, UNDATED)]
    first, last = dict[str, float](), dict[str, float]()
    for call in traffic:
        first[call.version] = min(call.began, first.get(call.version, math.inf))
    for call in as_they_came([call for call in traffic if call.id in used], seed):
        last[call.version] = max(call.began, last.get(call.version, -math.inf))

    def is_alone(call: LearnedCall) -> bool:
        return any(
            first[version] <= call.began <= end for version, end in last.items() if version != call.version
        )

    return [call for call in fresh if not is_alone(call)]


def as_they_came(calls: Sequence[LearnedCall], seed: int) -> list[LearnedCall]:
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
    return call.weight is None or part_of(call.id, seed + 2) < call.weight


def by_ids(
    calls: Sequence[LearnedCall], calibration: Collection[str], shape: AnswerShape, settings: LearnSettings
) -> Parts:
    """The same with the ids of the calibration calls given, as a training that goes on has them."""
    calibration = set(calibration)
    learned = [call for call in calls if call.id not in calibration]
    dev = [call for call in learned if part_of(call.text, settings.seed) < settings.dev_share]
    judging = frozenset(call.id for call in dev)
    parts = Parts(
        once_each([call for call in learned if call.id not in judging], shape),
        once_each(dev, shape),
        [call for call in calls if call.id in calibration],
        learned,
        judging,
    )
    if len(parts.train) < FEWEST or not parts.dev:
        raise InputError(
            f"There are {len(calls):,} calls with {len(parts.train) + len(parts.dev):,} different texts to "
            f"learn from; a training needs at least {FEWEST} texts beside those that it proves with. Record "
            "more calls, or have a file labelled by bertsmith mirror label."
        )
    return parts


def uses(parts: Parts) -> Mapping[str, list[str]]:
    """Ids by what their calls are for."""
    return {
        "train": [call.id for call in parts.learned if call.id not in parts.judging],
        "dev": sorted(parts.judging),
        "calibration": [call.id for call in parts.calibration],
    }
