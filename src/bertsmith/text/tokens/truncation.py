"""How a text that is too long is cut, and which of two: the rules of the `tokenizers` library, by which the
models of others were trained.
"""

from dataclasses import dataclass
from typing import Any, Literal, cast

from bertsmith.errors import TokenizerError

Strategy = Literal["longest_first", "only_first", "only_second"]
Direction = Literal["right", "left"]

# As tokenizer.json spells them.
_STRATEGIES: dict[Any, Strategy] = {
    "LongestFirst": "longest_first",
    "OnlyFirst": "only_first",
    "OnlySecond": "only_second",
}
_DIRECTIONS: tuple[Direction, ...] = ("right", "left")


@dataclass(frozen=True)
class Truncation:
    """`direction` is the end at which tokens are left out."""

    strategy: Strategy = "longest_first"
    direction: Direction = "right"

    def kept(self, first: int, second: int, room: int) -> tuple[int, int]:
        """How many of the tokens of two texts stay, which together are at most `room`.

        Of the longer text so many are left out that it has as many as the other; if the room is odd, the one
        that was longer keeps one more, and the second of two that were as long. Where one text alone may be
        cut and the other leaves it no room, which `tokenizers` refuses, both are.
        """
        if first + second <= room:
            return first, second
        if self.strategy == "only_first" and second < room:
            return room - second, second
        if self.strategy == "only_second" and first < room:
            return first, room - first
        shorter = min(first, second, max(room, 0) // 2)
        longer = max(room, 0) - shorter
        return (longer, shorter) if first > second else (shorter, longer)

    def range(self, tokens: int, kept: int) -> tuple[int, int]:
        """Which of a text's tokens are the `kept` ones: start and end."""
        return (0, kept) if self.direction == "right" else (tokens - kept, tokens)


USUAL_TRUNCATION = Truncation()


def truncation_of(stated: dict[str, Any] | None, config: dict[str, Any], where: str) -> Truncation:
    """What tokenizer.json has `stated`, but for the side, if tokenizer_config.json names one. Raises
    TokenizerError for a value that is none.
    """
    stated = stated or {}
    strategy = _STRATEGIES.get(stated.get("strategy", "LongestFirst"))
    direction = config.get("truncation_side") or str(stated.get("direction", "Right")).lower()
    if strategy is None or direction not in _DIRECTIONS:
        named = stated.get("strategy") if strategy is None else direction
        raise TokenizerError(
            f"{where}: {named!r} is no way to cut texts. Expected the truncation to be "
            f"{', '.join(_STRATEGIES)}, at the side {' or '.join(_DIRECTIONS)}."
        )
    return Truncation(strategy, cast(Direction, direction))
