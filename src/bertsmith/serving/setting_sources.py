"""Settings from a TOML file, from the environment and from the command line, the last going first."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from bertsmith.errors import InputError


def gather(
    kind: type[BaseModel],
    prefix: str,
    config: Path | None,
    given: Mapping[str, Any],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """What was said of each setting of `kind`, not yet checked. `given` is of the command line, None where it
    says nothing; of the environment PREFIX and the setting's name in capitals. Raises InputError for a file
    that can't be read.
    """
    found = {} if config is None else _read_toml(config)
    for name in kind.model_fields:
        if (value := environment.get(prefix + name.upper())) is not None:
            found[name] = value
    return found | {name: value for name, value in given.items() if value is not None}


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} is not there. Expected a TOML file with the service's settings.") from None
    except OSError as error:
        raise InputError(
            f"{path} can't be read: {error.strerror}. Expected a TOML file with the service's settings."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no TOML: {error}.") from None
