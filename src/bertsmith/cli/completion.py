"""`bertsmith --install-completion`: shells complete commands, options and their choices."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from cyclopts import App

from bertsmith.errors import InputError

COMPLETION = "--install-completion"


def completion_of(app: App) -> Callable[..., None]:
    """The command that installs it for all commands of `app`."""

    def install_completion(
        *, shell: Literal["bash", "zsh", "fish", "powershell"] | None = None, output: Path | None = None
    ) -> None:
        """Have the shell complete commands and options.

        The script goes where the shell looks for completions; if the shell needs it, its start-up file gets a
        line. New shells use it. Repeat this after an update.

        Parameters
        ----------
        shell
            By default the shell in use.
        output
            Write the script to this file, and change no start-up file.

        Examples
        --------
        bertsmith --install-completion
        bertsmith --install-completion --shell zsh
        """
        from cyclopts.completion.detect import ShellDetectionError, detect_shell

        try:
            shell = shell or detect_shell()
            path = app.install_completion(shell=shell, output=output, add_to_startup=output is None)
        except ShellDetectionError as error:
            raise InputError("Can't tell which shell this is. Name it: --shell bash, zsh or fish.") from error
        except OSError as error:
            where = error.filename or output or "The place of the script"
            raise InputError(
                f"{where} can't be written: {error.strerror}. Name a file: --output FILE."
            ) from error
        print(f"The completions of {shell} are in {path}. New shells use them.")

    return install_completion
