"""What the pages on pre-training start from: a folder of articles, and rows with labels."""

from pathlib import Path

SUBJECTS = ("court", "judge", "witness", "clerk", "lawyer", "jury", "tenant", "bank")
ACTIONS = ("granted", "denied", "signed", "read", "filed", "heard", "sold", "kept")


def write_articles(folder: Path, articles: int = 100) -> None:
    folder.mkdir()
    for number in range(articles):
        sentences = (
            f"The {subject} {ACTIONS[(number + place) % 8]} motion {number} of part {place}."
            for place, subject in enumerate(SUBJECTS)
        )
        (folder / f"{number}.txt").write_text("\n\n".join(sentences), encoding="utf-8")


def write_clauses(path: Path, rows: int = 60) -> None:
    """None of them stands in the articles."""
    lines = [
        f"The {SUBJECTS[n % 8]} {ACTIONS[n % 7]} paper {n}.,{'court' if n % 8 < 6 else 'party'}"
        for n in range(rows)
    ]
    path.write_text("\n".join(["text,label", *lines]), encoding="utf-8")
