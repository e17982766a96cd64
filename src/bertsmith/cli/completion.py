"""`bertsmith --install-completion`: shells complete commands, options and their choices."""

from pathlib import Path
from typing import Literal

from bertsmith.errors import InputError


def install_completion(
    *, shell: Literal["bash", "zsh", "fish", "powershell"] | None = None, output: Path | None = None
) -> None:
    """Have the shell complete commands, options and their choices, from the next shell on.

    The script goes where the shell looks for such, and a line into its start-up file where it needs one. Run
    this again after an update.

    Parameters
    ----------
    shell
        By default the one in use.
    output
        Write the script to this file, and change no start-up file.

    Examples
    --------
    bertsmith --install-completion
    bertsmith --install-completion --shell zsh
    """
    from cyclopts.completion.detect import ShellDetectionError, detect_shell

    from bertsmith.cli.main import build_app

    try:
        shell = shell or detect_shell()
    except ShellDetectionError as error:
        raise InputError("Which shell this is can't be told. Name it: --shell bash, zsh or fish.") from error
    try:
        path = build_app().install_completion(shell=shell, output=output, add_to_startup=output is None)
    except OSError as error:
        where = error.filename or output or "The place of the script"
        raise InputError(
            f"{where} can't be written: {error.strerror}. Name a file: --output FILE."
        ) from error
    print(f"The completions of {shell} are in {path}. New shells have them.")
