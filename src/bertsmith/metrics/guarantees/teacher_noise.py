"""How often the teacher contradicts itself, and so the most that any model can agree with it.

Ask an input twice. If the teacher answers y with probability q(y), two asks differ with probability
s = 1 - sum q², and the best that a model can do, always to say the likeliest y, differs from one ask with
probability d = 1 - max q. From max q >= sum q² and sum q² >= (max q)² follows s / 2 <= d <= s, for each input
and therefore on average: no model disagrees less than s / 2, and one that disagrees no more than s exists.
"""

from dataclasses import dataclass

from bertsmith.argument_checks import check_arguments, integer_from
from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.bounds import clopper_pearson, share
from bertsmith.metrics.scores import Interval


@dataclass(frozen=True)
class Ceiling:
    """With probability 1 - `delta`, the teacher's `self_disagreement` lies in the interval, and so the
    agreement of the best possible model in `best_agreement`.
    """

    self_disagreement: Interval
    best_agreement: Interval
    delta: float

    def attainable(self, epsilon: float) -> bool:
        """False: no model at all disagrees as little as `epsilon` on the calls that the ceiling is of.

        If those are all calls, a model that answers only some of them may still do it on these.
        """
        return 1 - epsilon <= self.best_agreement.high


@check_arguments(differing=integer_from(0), inputs=integer_from(0), delta=share)
def ceiling(differing: int, inputs: int, delta: float) -> Ceiling:
    """From `inputs` that were drawn at random and asked twice, of which `differing` got two different
    answers.

    One pair an input, whatever more was asked: pairs of one input are not independent. To learn of what a
    threshold answers, count only inputs that it answers. Raises InputError for counts that can't be.
    """
    if differing > inputs:
        raise InputError(f"Expected at most {inputs:,} inputs with two answers, found {differing:,}.")
    interval = clopper_pearson(differing, inputs, delta)
    return Ceiling(interval, Interval(1 - interval.high, 1 - interval.low / 2), delta)
