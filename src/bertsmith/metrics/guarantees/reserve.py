"""Capital that enters a sequential bet little by little, so that a change is noticed long after the start.

A bettor who stakes all at the start loses nearly everything while nothing changes, and must win it back
before a change shows. If instead some is held back and a little of it joins the bets at each step, there is
always fresh capital. The sum of stakes and reserve is still a test supermartingale: a mixture over the times
of entry. Ville's inequality holds for it: that it ever reaches 1 / delta has probability at most delta where
the null hypothesis is true.
"""

import math


def held_back(steps: int) -> float:
    """The share of the capital that is not yet staked after so many bets: 1, then 1/2, then as 1 / log.

    So slow that a change at step t costs about log t + 2 log log t of evidence, and no more.
    """
    return 0.5 / (1 + math.log(steps)) if steps else 1.0


def entering(step: int) -> float:
    """The share that is staked at bet number `step`, counted from 1, for the first time."""
    return held_back(step - 1) - held_back(step)
