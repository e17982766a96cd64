"""What was measured, written again after every row: whoever stops the run keeps what it had by then."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertsmith.files import atomic_write

Row = Mapping[str, Any]


class Record:
    """Parts with their rows, as JSON and as Markdown tables in one pair of files."""

    def __init__(self, folder: Path, name: str, title: str, facts: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / name
        self._title, self._facts = title, dict(facts)
        self._parts: dict[str, dict[str, Any]] = {}

    def begin(self, part: str, note: str) -> None:
        """A part without rows yet; `note` says how it was measured."""
        self._parts[part] = {"note": note, "rows": []}

    def add(self, part: str, row: Row) -> None:
        """A row, printed and written at once."""
        self._parts[part]["rows"].append(dict(row))
        print("  " + " · ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        self.write()

    def end(self, part: str, how: str) -> None:
        """Whether the part was finished, cut short, or failed, and after how long."""
        self._parts[part]["end"] = how
        self.write()

    def write(self) -> None:
        """Both files, whole."""
        found = {"title": self._title, "environment": self._facts, "parts": self._parts}
        atomic_write(self.path.with_suffix(".json"), json.dumps(found, indent=1) + "\n")
        atomic_write(self.path.with_suffix(".md"), self._markdown())

    def _markdown(self) -> str:
        facts = ", ".join(f"{key} {value}" for key, value in self._facts.items())
        lines = [f"# {self._title}", "", facts, ""]
        for name, part in self._parts.items():
            lines += [f"## {name}", "", part["note"], "", *_table(part["rows"]), ""]
            lines += [f"*{part['end']}*", ""] if part.get("end") else []
        return "\n".join(lines).rstrip() + "\n"


def _table(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return ["No figures."]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    head = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    cells = [[_cell(row.get(column, "")) for column in columns] for row in rows]
    return head + ["| " + " | ".join(each) + " |" for each in cells]


def _cell(value: Any) -> str:
    return " ".join(str(value).split()).replace("|", "/")
