"""A run of any kind of training: its recipe and folder, the machine it computes on, and its observer.

    with Run.open(lambda: open_finetuning(recipe, resume), resume, console) as run:
        ...  # read, train, measure, save

`Run.open` sets up the machine, joins the processes of the run and locks its folder, and undoes this at the
end. What is trained is up to the block.
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
from bertsmith.training.machine import Machine, broadcast_value, leave_ranks, set_up_machine, wait_for_ranks
from bertsmith.training.observer import RunObserver
from bertsmith.training.optimizer import find_optimizer
from bertsmith.training.run_folder import begin_folder, require_same_data, write_data_hashes
from bertsmith.training.settings import HardwareSettings, OptimizerSettings, RunSettings
from bertsmith.training.trackers import require_trackers


class RecipeWithFolder(Protocol):
    """What `Run` needs of a recipe."""

    @property
    def out(self) -> str | None:
        """The path of the run's folder."""

    @property
    def hardware(self) -> HardwareSettings:
        """The device, precision, threads and sharding to compute with."""

    @property
    def optimizer(self) -> OptimizerSettings:
        """The optimiser and its learning rates."""

    @property
    def micro_batch_tokens(self) -> int | None:
        """How many tokens go through the model at once; None for the device's default."""


R = TypeVar("R", bound=RecipeWithFolder)


@dataclass(frozen=True)
class Run(Generic[R]):
    """An open run. `console` is where the first process shows it; None in the others, which show nothing."""

    recipe: R
    resume: bool
    machine: Machine
    hardware: Hardware
    console: Console | None

    @staticmethod
    @contextmanager
    def open(
        read_recipe: Callable[[], R], resume: bool, console: Console | None = None
    ) -> "Iterator[Run[R]]":
        """Opens a run by the recipe that `read_recipe` returns; its folder is locked until the end of the
        block.

        `read_recipe` raises when the folder holds something else. It is called twice: before anything is set
        up, and again when the folder is locked and no other process can begin there. Under torchrun, every
        process calls this. Raises RecipeError, in all of them, while another process trains in the folder.
        """
        recipe, hardware = read_recipe(), Hardware.detect()
        find_optimizer(recipe.optimizer.kind)  # refuses a wrong one now, not after hours of tokenizing
        machine = set_up_machine(recipe.hardware, recipe.micro_batch_tokens, hardware)
        try:
            with lock_run(Path(recipe.out or ""), machine):
                recipe = read_recipe()
                wait_for_ranks()  # a late rank must not read the recipe that the first one is about to write
                yield Run(recipe, resume, machine, hardware, console if machine.ranks.is_first else None)
        finally:
            leave_ranks()

    @property
    def out(self) -> Path:
        """The run's folder, which the recipe names as `out`."""
        return Path(self.recipe.out or "")

    @property
    def is_first(self) -> bool:
        """Whether this process is the first, which writes the run's files."""
        return self.machine.ranks.is_first

    def record_data(self, hashes: dict[str, str]) -> None:
        """Records the SHA-256 of the run's data before it begins, for a run that first makes files from the
        data and uses them again when it is resumed. Raises RecipeError when the data has changed since.
        """
        require_same_data(self.out, hashes)
        wait_for_ranks()  # no rank may read what the first one is about to write
        if self.is_first:
            write_data_hashes(self.out, hashes)

    def begin(
        self, recipe: RunSettings, hashes: dict[str, str], given: Collection[str] | None = None
    ) -> None:
        """Writes the resolved recipe, the SHA-256 of the data files by their setting's name, and the names of
        the settings that were `given`, where that matters. Only the first process writes. Raises InputError
        if a tracker is not installed.
        """
        require_trackers(recipe.trackers)
        if self.is_first:
            begin_folder(recipe, self.out, hashes, given)

    def observer(
        self, title: str, facts: dict[str, str], settings: RunSettings, folder: Path | None = None
    ) -> RunObserver:
        """Makes the observer of a loop with these settings. It writes its log into `folder`, by default the
        run's own; `title` and `facts` are shown.
        """
        place = (folder or self.out).resolve().relative_to(self.out.resolve().parent)
        return RunObserver(
            folder or self.out, title, facts, settings, self.machine, self.console, place.as_posix()
        )


@contextmanager
def lock_run(out: Path, machine: Machine) -> Iterator[None]:
    """Locks the folder `out` for the block. Raises RecipeError on every rank while another process holds it.

    The first rank makes the folder if need be and locks it itself, so that no lock file is left in it. A
    folder that was made and is empty afterwards is removed. On file systems without locks nothing is locked.
    """
    with ExitStack() as stack:
        free = stack.enter_context(_lock_folder(out)) if machine.ranks.is_first else True
        if not broadcast_value(float(free), machine.device):
            raise RecipeError(
                f"{out} is in use: another process is training there. Wait until it has ended, or choose "
                "another folder for this run."
            )
        yield


@contextmanager
def _lock_folder(folder: Path) -> Iterator[bool]:
    """Makes and locks the folder; yields whether this process has the lock."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    make_folder(folder)
    with locked_folder(folder) as free:
        try:
            yield free
        finally:
            with suppress(OSError):  # the first folder that isn't empty stays, and so do those above it
                for path in missing if free else ():
                    path.rmdir()
