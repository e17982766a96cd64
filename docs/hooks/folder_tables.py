"""docs/folder-contract.md from the code's tables: `python docs/hooks/folder_tables.py` writes it anew."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from bertsmith.model.config_json import config_keys
from bertsmith.model.families import find_family
from bertsmith.model.folder_keys import CONFIG, TABLES, FileKeys

PAGE = Path(__file__).parents[1] / "folder-contract.md"
START = "<!-- From here on made by docs/hooks/folder_tables.py -->"
FAMILIES = ("bert", "roberta", "distilbert", "electra", "modernbert", "nomic_bert")


def page() -> str:
    """What people wrote, and the tables behind it."""
    written = PAGE.read_text(encoding="utf-8").partition(START)[0]
    return f"{written}{START}\n\n" + "\n\n".join(tables()) + "\n"


def tables() -> Iterator[str]:
    for table in TABLES:
        yield f"## {table.file}"
        yield from rows(table)
        if table is CONFIG:
            for name in FAMILIES:
                yield f"### config.json of {name}"
                yield from rows(own_keys(config_keys(find_family(name))))


def own_keys(table: FileKeys) -> FileKeys:
    """Without what every family has."""

    def own(keys: Mapping[str, object]) -> dict[str, object]:
        return {key: value for key, value in keys.items() if key not in CONFIG.known}

    return FileKeys(table.file, own(table.honoured), own(table.harmless), own(table.accepted))  # type: ignore[arg-type]


def rows(table: FileKeys) -> Iterator[str]:
    """Keys with one meaning share a row."""
    lines = ["| keys | | |", "| --- | --- | --- |"]
    for kind, meanings in (("honoured", table.honoured), ("harmless", table.harmless)):
        for meaning in dict.fromkeys(meanings.values()):
            lines.append(
                f"| {listed(key for key, why in meanings.items() if why == meaning)} | {kind} | {meaning} |"
            )
    for key, values in table.accepted.items():
        only = " or ".join(f"`{json.dumps(value)}`" for value in values) if values else "null"
        lines.append(f"| `{key}` | refused unless | {only} |")
    yield "\n".join(lines)


def listed(keys: Iterator[str]) -> str:
    return ", ".join(f"`{key}`" for key in sorted(keys))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
