"""One run at work, whatever it trains: its recipe and folder, the machine it computes on, and who watches.

    with Run.open(lambda: open_finetuning(given, resume), resume, console) as run:
        ...  # read, train, measure, save

What a story of training tells is between the two; who else might be at work in the folder, in how many
processes it is told and how these part again is told here once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from rich.console import Console

from bertsmith.machine import Hardware
from bertsmith.training.machine import Machine, leave, set_up_machine, wait
from bertsmith.training.observer import RunObserver
from bertsmith.training.run_folder import sole_run
from bertsmith.training.settings import HardwareSettings, RunSettings


class RecipeWithFolder(Protocol):
    """What the recipe of any run says of where it is at work."""

    @property
    def out(self) -> str | None:
        """The folder."""

    @property
    def hardware(self) -> HardwareSettings:
        """What to compute on."""

    @property
    def micro_batch_tokens(self) -> int | None:
        """How many tokens at a time; None: as many as are usual there."""


R = TypeVar("R", bound=RecipeWithFolder)


@dataclass(frozen=True)
class Run(Generic[R]):
    """A run at work. `console` is where the first process shows it; the others show nothing."""

    recipe: R
    resume: bool
    machine: Machine
    hardware: Hardware
    console: Console | None

    @staticmethod
    @contextmanager
    def open(look: Callable[[], R], resume: bool, console: Console | None = None) -> "Iterator[Run[R]]":
        """The run of the recipe that `look` returns, alone in its folder until the end of the block.

        `look` says what is run, and raises where the folder holds something else. It is asked twice: before
        anything is set up, and again when nobody else can begin there any more. Under torchrun, every process
        calls this. Raises RecipeError, in all of them, while another run is at work in the folder.
        """
        recipe, hardware = look(), Hardware.detect()
        machine = set_up_machine(recipe.hardware, recipe.micro_batch_tokens, hardware)
        try:
            with sole_run(Path(recipe.out or ""), machine):
                recipe = look()
                wait()  # a rank that comes late must not find the run that the first one is about to begin
                yield Run(recipe, resume, machine, hardware, console if machine.ranks.is_first else None)
        finally:
            leave()

    @property
    def out(self) -> Path:
        """The folder."""
        return Path(self.recipe.out or "")

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.machine.ranks.is_first

    def observer(
        self, title: str, facts: dict[str, str], settings: RunSettings, folder: Path | None = None
    ) -> RunObserver:
        """Hears what a loop by these settings does, for the log in `folder`, the run's own by default."""
        return RunObserver(folder or self.out, title, facts, settings, self.machine, self.console)
