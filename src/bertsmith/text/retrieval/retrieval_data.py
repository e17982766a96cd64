"""A test collection for retrieval: documents, queries, and judgements of which document answers which."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

from bertsmith.errors import InputError
from bertsmith.text.tokens.tokenizer import LONE_SURROGATE, replace_surrogates


@dataclass(frozen=True)
class RetrievalData:
    """A test collection, which is in memory as a whole.

    documents, queries: id -> text. judgements: query -> document -> grade; grades above 0 are relevant, and
    documents that aren't judged count as 0. candidates: query -> the documents that are ranked for it, if not
    all. `notes` are sentences on oddities of the files and how they were treated.
    """

    name: str
    documents: Mapping[str, str]
    queries: Mapping[str, str]
    judgements: Mapping[str, Mapping[str, int]]
    candidates: Mapping[str, tuple[str, ...]] | None = None
    notes: tuple[str, ...] = ()

    def judged_queries(self) -> dict[str, str]:
        """The queries with a relevant document, in order: only these can be evaluated."""
        relevant = {query for query, grades in self.judgements.items() if max(grades.values(), default=0) > 0}
        return {query: text for query, text in self.queries.items() if query in relevant}

    def noting(self, sentence: str) -> "RetrievalData":
        """The same collection with another note; itself if `sentence` is empty."""
        return replace(self, notes=(*self.notes, sentence)) if sentence else self

    def with_fewer_queries(self, count: int, seed: int = 0) -> "RetrievalData":
        """The same collection with `count` of its judged queries, drawn at random; itself if it has no more.

        Raises InputError if `count` is less than 1.
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
    """Collects documents, queries and judgements as they are read; refuses mistakes and counts oddities."""

    documents: dict[str, str] = field(default_factory=dict)
    queries: dict[str, str] = field(default_factory=dict)
    judgements: dict[str, dict[str, int]] = field(default_factory=dict)

    def add_document(self, id: str, text: str, where: str) -> None:
        """Adds a document; half of a UTF-16 pair, which no file could have, becomes U+FFFD in its text.

        Raises InputError for a second document with the same id. An empty document stays: it can be
        retrieved.
        """
        _check_record(id, text, "document", self.documents, where)
        self.documents[id] = replace_surrogates(text).strip()

    def add_query(self, id: str, text: str, where: str) -> None:
        """Adds a query. Raises InputError for a second query with the same id, and for an empty one."""
        _check_record(id, text, "query", self.queries, where)
        if not text.strip():
            raise InputError(f"{where}: query {id!r} is empty. Fill it in or remove it.")
        self.queries[id] = replace_surrogates(text).strip()

    def judge(self, query: str, document: str, grade: int, where: str) -> None:
        """Adds the grade of a document for a query. Raises InputError if the same pair had another grade
        before.
        """
        earlier = self.judgements.setdefault(query, {}).setdefault(document, grade)
        if earlier != grade:
            raise InputError(
                f"{where}: document {document!r} has grade {grade} for query {query!r}, but {earlier} "
                "further up. Keep one of them."
            )

    def finish(
        self,
        name: str,
        judged_in: str,
        notes: tuple[str, ...] = (),
        candidates: Mapping[str, tuple[str, ...]] | None = None,
    ) -> RetrievalData:
        """The collection, called `name`, with notes on its oddities; `judged_in` is the file of the
        judgements.

        Raises InputError if there are no documents, no queries or no judgements, or if none of the judgements
        is of these documents and queries.
        """
        for kind, texts in (("document", self.documents), ("query", self.queries)):
            if not texts:
                raise InputError(f"{name}: expected at least one {kind}, found none.")
        judgements = {query: grades for query, grades in self.judgements.items() if query in self.queries}
        if not judgements:
            raise InputError(_describe_mismatch(judged_in, "query", self.judgements, self.queries))
        judged = {document for grades in judgements.values() for document in grades}
        if not judged & self.documents.keys():
            raise InputError(_describe_mismatch(judged_in, "document", judged, self.documents))
        oddities = {
            "documents are empty: they stay in the collection": sum(
                not text for text in self.documents.values()
            ),
            "judged documents are not in the collection: they count as never found": len(
                judged - self.documents.keys()
            ),
            "judged queries are not among the queries: they are left out": len(self.judgements)
            - len(judgements),
        }
        oddity_notes = tuple(f"{count:,} {oddity}." for oddity, count in oddities.items() if count)
        return RetrievalData(
            name, self.documents, self.queries, judgements, candidates, (*notes, *oddity_notes)
        )


def join_title(title: str, text: str) -> str:
    """Title and text as one text, as BEIR joins them; a title with which the text begins is not repeated."""
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
    """A message on judgements of which none fits the data, with an example of each side's ids."""
    if not judged:
        return f"{where}: expected at least one judgement, found none."
    return (
        f"{where}: not one judged {kind} is in the data. Judged is {min(judged)!r}, for example, and the "
        f"data has {next(iter(known))!r}. Do the files belong together?"
    )
