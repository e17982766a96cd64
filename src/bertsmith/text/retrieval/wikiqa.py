"""WikiQA's layout (Yang, Yih and Meek 2015): question TAB sentence TAB 0 or 1, without a header.

Rows with the same question are its candidates: what is measured is their order. Published figures leave out
the questions without a right sentence.
"""

from pathlib import Path

from bertsmith.errors import InputError
from bertsmith.text.labelled.rows import read_rows
from bertsmith.text.retrieval.retrieval_data import Gathering, RetrievalData

_NOTE = "Each query ranks its own {:.0f} candidates (on average), not the whole collection."


def read_wikiqa(path: Path, encoding: str = "utf-8") -> RetrievalData:
    """Queries are q1, q2 … in their order, their sentences q1-1, q1-2 … Raises InputError naming the line."""
    gathered = Gathering()
    ids: dict[str, str] = {}
    candidates: dict[str, list[str]] = {}
    rows = read_rows(path, (1, 2, 3), format="tsv", header=False, encoding=encoding)
    for (question, sentence, label), where in rows:
        if question not in ids:
            ids[question] = f"q{len(ids) + 1}"
            gathered.add_query(ids[question], question, where)
        query = ids[question]
        document = f"{query}-{len(candidates.setdefault(query, [])) + 1}"
        gathered.add_document(document, sentence, where)
        gathered.judge(query, document, _label(label, where), where)
        candidates[query].append(document)
    note = _NOTE.format(len(rows) / len(ids))
    chosen = {query: tuple(documents) for query, documents in candidates.items()}
    return gathered.finish(path.stem, path.name, (note,), chosen)


def _label(spelled: str, where: str) -> int:
    if spelled.strip() not in ("0", "1"):
        raise InputError(f"{where}: expected 0 or 1 in the third column, found {spelled!r}.")
    return int(spelled)
