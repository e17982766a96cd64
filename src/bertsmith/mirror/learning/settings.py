"""Every choice of a training, and its default."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from bertsmith.validation import UserSettings

Tier = Literal["tf-idf", "encoder"]
_Share = Annotated[float, Field(gt=0, lt=1)]


class LearnSettings(UserSettings):
    """The claim to prove: answers differ in at most `epsilon`, with probability 1 - `delta`. With the prices
    `call_price` and `error_price`, the threshold that saves most is proven instead. On the same calls, and
    together with it, the claims at the risks of `ladder` are proven, any of which may be chosen afterwards.

    The latest `calibration_share` of the calls, at most `most_calibration`, prove the claim; `dev_share` of
    the other texts choose the model. The first of `tiers` that answers `enough` of the calls wins, else the
    one that answers most. `by_class` is the path of a field whose values get a threshold and a claim each.
    `model` is the encoder to fine-tune; `restarts` and `overrides` are those of fine-tuning. `from_names`
    begins by the names of the values and the inputs alone: no answer is learned, so all of them say how often
    the student agrees.
    """

    epsilon: _Share = 0.05
    delta: _Share = 0.05
    call_price: float | None = Field(None, gt=0, allow_inf_nan=False)
    error_price: float | None = Field(None, gt=0, allow_inf_nan=False)
    ladder: tuple[_Share, ...] = (0.02, 0.05, 0.1, 0.2)
    by_class: str | None = None
    calibration_share: _Share = 0.3
    most_calibration: int = Field(4000, ge=1)
    dev_share: _Share = 0.15
    tiers: tuple[Tier, ...] = Field(("tf-idf", "encoder"), min_length=1)
    enough: _Share = 0.95
    model: str = "minilm"
    restarts: int = Field(1, ge=1)
    overrides: tuple[str, ...] = ()
    seed: int = 0
    from_names: bool = False

    @property
    def risks(self) -> tuple[float, ...]:
        """The risks at which the whole answer is proven, ascending: those of the ladder and epsilon. With
        prices or by class there is no ladder.
        """
        is_alone = self.call_price is not None or self.by_class is not None
        return tuple(sorted({self.epsilon, *(() if is_alone else self.ladder)}))

    @model_validator(mode="after")
    def _used_by_the_tiers(self) -> Self:
        given = {"model": self.model != "minilm", "restarts": self.restarts != 1}
        names = [name for name, is_given in given.items() if is_given]
        names += [override.partition("=")[0] for override in self.overrides]
        if names and "encoder" not in self.tiers:
            raise ValueError(f"{names[0]} is for an encoder: leave it out, or add encoder to tiers")
        return self

    @model_validator(mode="after")
    def _names_alone(self) -> Self:
        if self.from_names and (self.by_class is not None or "encoder" not in self.tiers):
            raise ValueError(
                "from_names is for an encoder with a claim on all answers: leave out by_class and tiers"
            )
        return self

    @model_validator(mode="after")
    def _both_prices(self) -> Self:
        if (self.call_price is None) != (self.error_price is None):
            raise ValueError("expected call_price and error_price together, or neither")
        if self.call_price is not None and self.by_class is not None:
            raise ValueError("expected either prices or by_class")
        return self
