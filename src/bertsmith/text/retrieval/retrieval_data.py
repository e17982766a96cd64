"""What retrieval is measured on: documents, queries, and which of the documents answer which query."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

from bertsmith.errors import InputError
from bertsmith.text.tokens.tokenizer import LONE_SURROGATE, replace_surrogates


@dataclass(frozen=True)
class RetrievalData:
    """A test collection, whole in memory.

    documents, queries: id -> text. judgements: query -> document -> grade; above 0 is relevant, and what
    isn't judged counts as 0. candidates: query -> the documents it chooses from, where those aren't all.
    `notes` are sentences on what was done with oddities of the files.
    """

    name: str
    documents: Mapping[str, str]
    queries: Mapping[str, str]
    judgements: Mapping[str, Mapping[str, int]]
    candidates: Mapping[str, tuple[str, ...]] | None = None
    notes: tuple[str, ...] = ()

    def judged_queries(self) -> dict[str, str]:
        """Those with a relevant document, in order: all that can be measured."""
        relevant = {query for query, grades in self.judgements.items() if max(grades.values(), default=0) > 0}
        return {query: text for query, text in self.queries.items() if query in relevant}

    def noting(self, sentence: str) -> "RetrievalData":
        """The same with one note more, unless it's empty."""
        return replace(self, notes=(*self.notes, sentence)) if sentence else self

    def with_fewer_queries(self, count: int, seed: int = 0) -> "RetrievalData":
        """The same collection with `count` of its judged queries, drawn at random, or all if it has no more.

        Raises InputError when count is less than 1.
        """
        if count < 1:
            raise InputError(f"The number of queries must be 1 or more, found {count}.")
        judged = list(self.judged_queries())
        if len(judged) <= count:
            return self
        drawn = set(Random(seed).sample(judged, count))
        note = f"{count:,} of {len(judged):,} queries were drawn at random."
        return replace(
            self,
            queries={query: text for query, text in self.queries.items() if query in drawn},
            judgements={query: grades for query, grades in self.judgements.items() if query in drawn},
            notes=(*self.notes, note),
        )


@dataclass
class RetrievalDataBuilder:
    """Takes in what a reader finds, refuses what can't be meant, and counts what is merely odd."""

    documents: dict[str, str] = field(default_factory=dict)
    queries: dict[str, str] = field(default_factory=dict)
    judgements: dict[str, dict[str, int]] = field(default_factory=dict)

    def add_document(self, id: str, text: str, where: str) -> None:
        """Half a UTF-16 pair, which no file could hold, becomes U+FFFD.

        Raises InputError for a second document of that id. An empty one stays: it could be retrieved.
        """
        _check_record(id, text, "document", self.documents, where)
        self.documents[id] = replace_surrogates(text).strip()

    def add_query(self, id: str, text: str, where: str) -> None:
        """Raises InputError for a second query of that id and for an empty one."""
        _check_record(id, text, "query", self.queries, where)
        if not text.strip():
            raise InputError(f"{where}: query {id!r} is empty. Fill it in or remove it.")
        self.queries[id] = replace_surrogates(text).strip()

    def judge(self, query: str, document: str, grade: int, where: str) -> None:
        """Raises InputError when the same pair was given another grade before."""
        before = self.judgements.setdefault(query, {}).setdefault(document, grade)
        if before != grade:
            raise InputError(
                f"{where}: document {document!r} has grade {grade} for query {query!r}, but {before} further "
                "up. Keep one of them."
            )

    def finish(
        self,
        name: str,
        judged_in: str,
        notes: tuple[str, ...] = (),
        candidates: Mapping[str, tuple[str, ...]] | None = None,
    ) -> RetrievalData:
        """Raises InputError when something is missing, or when the judgements, which stand in the file
        `judged_in`, are of other queries or documents."""
        for kind, found in (("document", self.documents), ("query", self.queries)):
            if not found:
                raise InputError(f"{name}: expected at least one {kind}, found none.")
        judgements = {query: grades for query, grades in self.judgements.items() if query in self.queries}
        if not judgements:
            raise InputError(_describe_mismatch(judged_in, "query", self.judgements, self.queries))
        judged = {document for grades in judgements.values() for document in grades}
        if not judged & self.documents.keys():
            raise InputError(_describe_mismatch(judged_in, "document", judged, self.documents))
        oddities = {
            "documents are empty: they stay in the collection": sum(not t for t in self.documents.values()),
            "judged documents are not in the collection: they count as never found": len(
                judged - self.documents.keys()
            ),
            "judged queries are not among the queries: they are left out": len(self.judgements)
            - len(judgements),
        }
        counted = tuple(f"{count:,} {oddity}." for oddity, count in oddities.items() if count)
        return RetrievalData(name, self.documents, self.queries, judgements, candidates, (*notes, *counted))


def join_title(title: str, text: str) -> str:
    """Title and text as one, as BEIR joins them; a title that the text begins with isn't said twice."""
    title, text = title.strip(), text.strip()
    return text if text.startswith(title) else f"{title} {text}".strip()


def _check_record(id: str, text: str, kind: str, known: Mapping[str, str], where: str) -> None:
    if not id or len(id.split()) != 1:
        raise InputError(
            f"{where}: expected an id without blanks, which separate the columns of TREC's files; found "
            f"{id!r}."
        )
    if LONE_SURROGATE.search(id):
        raise InputError(
            f"{where}: the id {id!r} holds half of a UTF-16 pair, which is no character. Mend it."
        )
    if id in known:
        raise InputError(f"{where}: a second {kind} with the id {id!r}. Give each its own.")
    if "\0" in text:
        raise InputError(
            f"{where}: {kind} {id!r} holds a NUL character, so it is no text. Mend or remove it."
        )


def _describe_mismatch(
    where: str, kind: str, judged: Mapping[str, object] | set[str], known: Mapping[str, str]
) -> str:
    """Why judgements fit nothing, with an example of each side's ids."""
    if not judged:
        return f"{where}: expected at least one judgement, found none."
    return (
        f"{where}: not one judged {kind} is in the data. Judged is {min(judged)!r}, for example, and the "
        f"data has {next(iter(known))!r}. Do the files belong together?"
    )
