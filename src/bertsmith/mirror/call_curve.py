"""How agreement grows with the calls learned from, and how many more a target needs.

The cheap tier is trained on parts of the texts, and its disagreement on dev falls as a power law. Another
tier's is taken to fall at the same pace, from where it stands.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.power_law import PowerLaw, fit_power_law
from bertsmith.metrics.scores import Interval
from bertsmith.mirror.candidate import Judged
from bertsmith.mirror.fields import AnswerShape
from bertsmith.mirror.learned_calls import LearnedCall, part_of
from bertsmith.mirror.targets import heads_of
from bertsmith.mirror.word_tier import fit_words

_SHARES = (0.125, 0.25, 0.5)
_FEWEST = 20  # texts of the smallest part


@dataclass(frozen=True)
class CallCurve:
    """Agreement on dev's `calls` by the texts learned from, of the cheap tier; `tier` names whose forecast it
    is and `reached` its agreement with all texts, which `recorded` calls hold, those kept to choose and prove
    with among them.
    """

    rows: tuple[int, ...]
    agreements: tuple[float, ...]
    calls: int
    tier: str
    reached: float
    law: PowerLaw
    recorded: int

    def forecast(self, agreement: float) -> str:
        """'About 1,400 more calls to reach 95 % (from 900 to 2,600).' So many go to a text as until now."""
        texts = self.law.rows_for(agreement)
        # Divided first, so that as many texts as there are come to exactly the calls recorded.
        needed, low, high = (self.recorded * (each / self.rows[-1]) for each in (texts.rows, *texts.interval))
        return replace(texts, have=self.recorded, rows=needed, interval=Interval(low, high)).as_sentence()


def draw_curve(
    train: Sequence[LearnedCall],
    dev: Sequence[LearnedCall],
    shape: AnswerShape,
    reached: Judged,
    tier: str,
    floor: float,
    seed: int,
    recorded: int,
) -> CallCurve | None:
    """None for too few texts, and for answers that the cheap tier can't give. `floor` is the least that the
    teacher's own contradictions allow; `recorded` are the calls that all texts come of.
    """
    if len(train) * _SHARES[0] < _FEWEST or any(field.kind == "spans" for field in shape.fields):
        return None
    order = sorted(train, key=lambda call: part_of(call.text, seed + 1))
    rows = [round(share * len(train)) for share in (*_SHARES, 1.0)]
    wrong = [_disagreements(order[:count], dev, shape) for count in rows]
    if any(each is None for each in wrong):
        return None
    counts = [each for each in wrong if each is not None]
    law = fit_power_law(rows, counts, [len(dev)] * len(rows), min(floor, 0.5), seed)
    agreements = tuple(1 - each / len(dev) for each in counts)
    found = CallCurve(tuple(rows), agreements, len(dev), tier, reached.agreement, law, recorded)
    return found if tier == "tf-idf" else replace(found, law=_moved(law, reached))


def _disagreements(
    train: Sequence[LearnedCall], dev: Sequence[LearnedCall], shape: AnswerShape
) -> int | None:
    try:
        heads = heads_of(shape, train)
    except InputError:  # so few may hold none of a field's values
        return None
    model = fit_words(train, heads, shape)
    if model is None:
        return None
    logits = model.logits([call.text for call in dev])
    guesses = {head.path: head.guesses(shape.field(head.path), logits[head.path]) for head in heads}
    return sum(
        bool(shape.differing({path: of[number].value for path, of in guesses.items()}, call.values))
        for number, call in enumerate(dev)
    )


def _moved(law: PowerLaw, reached: Judged) -> PowerLaw:
    """Through the other tier's disagreement at all rows."""
    count = len(reached.differs)
    rate = (reached.differs.sum() + 0.5) / (count + 1)
    excess = max(float(rate) - law.floor, 0.5 / count)
    shift = math.log(excess) - (law.log_a - law.b * math.log(law.have))
    return replace(law, log_a=law.log_a + shift, draws=law.draws + np.array([shift, 0.0]))
