"""One run at work, whatever it trains: its recipe and folder, the machine it computes on, and who watches.

    with Run.open(lambda: open_finetuning(given, resume), resume, console) as run:
        ...  # read, train, measure, save

What a story of training tells is between the two; who else might be at work in the folder, in how many
processes it is told and how these part again is told here once.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from rich.console import Console

from bertsmith.errors import RecipeError
from bertsmith.files import locked_folder, make_folder
from bertsmith.machine import Hardware
from bertsmith.training.machine import Machine, from_first, leave, set_up_machine, wait
from bertsmith.training.observer import RunObserver
from bertsmith.training.optimizer import find_optimizer
from bertsmith.training.run_folder import begin_folder, require_same_data, write_data_hashes
from bertsmith.training.settings import HardwareSettings, OptimizerSettings, RunSettings


class RecipeWithFolder(Protocol):
    """What the recipe of any run says of where it is at work."""

    @property
    def out(self) -> str | None:
        """The folder."""

    @property
    def hardware(self) -> HardwareSettings:
        """What to compute on."""

    @property
    def optimizer(self) -> OptimizerSettings:
        """What steps the weights."""

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
        find_optimizer(recipe.optimizer.kind)  # or hours of tokenizing might pass before it is refused
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

    def note_data(self, hashes: dict[str, str]) -> None:
        """Writes the SHA-256 of its files before it begins: for a run that first makes something of them, and
        finds it again. Raises RecipeError where one has changed since.
        """
        require_same_data(self.out, hashes)
        wait()  # no rank may find what the first one is about to write
        if self.is_first:
            write_data_hashes(self.out, hashes)

    def begin(
        self, recipe: RunSettings, hashes: dict[str, str], given: Collection[str] | None = None
    ) -> None:
        """Writes what is trained by and on, which the first process does: the resolved recipe, the SHA-256 of
        its files, and which settings were `given`, where that matters.
        """
        if self.is_first:
            begin_folder(recipe, self.out, hashes, given)

    def observer(
        self, title: str, facts: dict[str, str], settings: RunSettings, folder: Path | None = None
    ) -> RunObserver:
        """Hears what a loop by these settings does, for the log in `folder`, the run's own by default."""
        return RunObserver(folder or self.out, title, facts, settings, self.machine, self.console)


@contextmanager
def sole_run(out: Path, machine: Machine) -> Iterator[None]:
    """Raises RecipeError, on every rank, while another run is at work in the folder `out`.

    The first rank locks the folder itself, so that no file is left in it, and makes it if need be; one that
    is empty afterwards is removed. Where there are no locks, nobody is kept out.
    """
    with ExitStack() as until_the_end:
        free = until_the_end.enter_context(_locked(out)) if machine.ranks.is_first else True
        if not from_first(float(free), machine.device):
            raise RecipeError(
                f"{out} is in use: another process is training there. Wait until it has ended, or choose "
                "another folder for this run."
            )
        yield


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Whether this process has it."""
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    make_folder(folder)
    with locked_folder(folder) as free:
        try:
            yield free
        finally:
            with suppress(OSError):  # the first that isn't empty stays, and those above it
                for each in new if free else ():
                    each.rmdir()
