"""One training at a time in a folder, by a lock that the system itself lets go of when its process dies."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bertsmith.errors import RecipeError
from bertsmith.files import locked_folder, make_folder
from bertsmith.training.distributed import from_first
from bertsmith.training.machine import Machine


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
