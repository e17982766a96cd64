"""What a person may do to a stage: promote, demote, roll back, approve the candidate. For the command line
and the page, which then refuse the same and say the same.
"""

from dataclasses import replace

from bertsmith.errors import InputError
from bertsmith.mirror.answering.judging import said
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.answering.stages import Stage, demoted, promoted, replaced, rolled_back

MOVES = ("promote", "demote", "roll-back", "approve")


def moved(store: StageStore, stage: Stage, move: str, canary_share: float, to: str = "") -> Stage:
    """The stage after one of `MOVES`; nothing is stored. Raises InputError where it can't be made, and where
    the evidence is against the student that would do more.
    """
    if move == "demote":
        return demoted(stage, canary_share, to)
    if move == "roll-back":
        after = rolled_back(stage)
    elif move == "approve":
        after = approved(stage)
    else:
        after = promoted(stage, canary_share, to)
    refuse_disproven(store, after)
    return after


def approved(stage: Stage) -> Stage:
    """The candidate in the student's place, in the same mode, without waiting for more comparisons. Raises
    InputError without one.
    """
    if not stage.candidate:
        raise InputError(f"Version {stage.version} has no candidate that could take the student's place.")
    return replaced(stage) if stage.student else replace(stage, student=stage.candidate, candidate="")


def refuse_disproven(store: StageStore, after: Stage) -> None:
    """A student that the evidence is against would be demoted at once. Raises InputError."""
    known = store.evidence().get(after.student)
    if known is not None and known.decision == "demote":
        raise InputError(
            f"The evidence is against student {after.student}: {said(known)}, and "
            f"{100 * known.audits.epsilon:g}% may. Train another."
        )


def change(store: StageStore, before: Stage, after: Stage, why: str) -> None:
    """By hand. Raises InputError where somebody else has changed the stage meanwhile."""
    if not store.change(before, after, "hand", why):
        raise InputError(
            f"Version {before.version} was changed by somebody else meanwhile. Look at `bertsmith mirror "
            "status`, and say it again."
        )
