"""A seed's part of labelled files: so many rows, sentences of CoNLL's files, or rows a class."""

import csv
import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

_DOCUMENT = "-DOCSTART-"  # begins a document of CoNLL's files, and is no sentence


def cut(path: Path, out: Path, rows: int, seed: int) -> Path:
    """Writes `rows` of the file's rows, or all there are, in their order. A .txt file has a word a line and a
    blank line behind a sentence; others have a header.
    """
    head, found = read_rows(path)
    chosen = sorted(random.Random(seed).sample(range(len(found)), min(rows, len(found))))
    write_rows(out, head, (found[number] for number in chosen))
    return out


def divide_classes(
    path: Path, train: Path, dev: Path, label: str, dev_rows: int, rows: int | None, seed: int
) -> None:
    """A CSV file's rows as dev, `dev_rows` a class and the same for every seed, and as train: of the others
    `rows` a class by the seed, or all.
    """
    head, found = read_rows(path)
    column = next(csv.reader(head)).index(label)
    classes = [next(csv.reader([row]))[column] for row in found]
    held = draw_a_class(classes, dev_rows, seed=0)
    others = sorted(set(range(len(found))) - set(held))
    chosen = others if rows is None else draw_a_class(classes, rows, seed, without=held)
    write_rows(dev, head, (found[number] for number in held))
    write_rows(train, head, (found[number] for number in chosen))


def draw_a_class(classes: Sequence[str], rows: int, seed: int, without: Collection[int] = ()) -> list[int]:
    """Numbers of `rows` rows of each class, in their order, none of them `without`. Raises ValueError where a
    class has fewer.
    """
    left, passed = defaultdict(list), set(without)
    for number, name in enumerate(classes):
        if number not in passed:
            left[name].append(number)
    for name in sorted(set(classes)):
        if len(left[name]) < rows:
            raise ValueError(f"{name} has {len(left[name])} rows left, and {rows} are wanted")
    generator = random.Random(seed)
    return sorted(number for name in sorted(left) for number in generator.sample(left[name], rows))


def read_rows(path: Path) -> tuple[list[str], list[str]]:
    """The header, or nothing, and the rows as they are written, quotes and line breaks within them too."""
    text = path.read_text(encoding="utf-8-sig").strip("\n")
    if path.suffix == ".txt":
        blocks = [block.strip("\n") for block in text.split("\n\n")]
        return [], [block + "\n" for block in blocks if block and not block.startswith(_DOCUMENT)]
    lines = text.split("\n")
    head, *rows = _records(lines) if path.suffix == ".csv" else lines
    return [head], rows


def write_rows(path: Path, head: Iterable[str], rows: Iterable[str]) -> None:
    """What `read_rows` reads."""
    path.write_text("\n".join([*head, *rows]) + "\n", encoding="utf-8")


def _records(lines: Sequence[str]) -> list[str]:
    """Lines of CSV joined where a quoted value goes on in the next one."""
    records, begun = [], ""
    for line in lines:
        begun = f"{begun}\n{line}" if begun else line
        if begun.count('"') % 2 == 0:
            records.append(begun)
            begun = ""
    return records
