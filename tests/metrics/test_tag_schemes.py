"""Schemes of tags: recognised by a table, and read by the rules of seqeval.

Of sequences that a scheme allows, seqeval's strict mode says the same as its default one, conlleval's. Of
others the default one is the published rule, and ours.
"""

import warnings
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import f1_score
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import BILOU, IOB1, IOB2, IOBES, IOE1, IOE2, Entities

from bertsmith.errors import InputError
from bertsmith.metrics.entities import (
    NONE,
    SCHEMES,
    Scheme,
    SchemeName,
    Span,
    entity_scores,
    recognise,
    spans_of_tags,
    tags_of_spans,
)

STRICT = {"iob1": IOB1, "iob2": IOB2, "ioe1": IOE1, "ioe2": IOE2, "iobes": IOBES, "bilou": BILOU}
NAMES = [*SCHEMES]
LABELS = ["PER", "LOC", "a-b"]
FEW = settings(max_examples=60, derandomize=True)
MANY = settings(max_examples=20_000)


def written(name: SchemeName, spans: Sequence[Span], words: int) -> list[str]:
    """By the definitions of each scheme: Ratinov and Roth 2009, Krishnan and Ganapathy 2005."""
    tags = ["O"] * words
    for label, start, end in spans:
        touches = any(span.end == start and span.label == label for span in spans)
        touched = any(span.start == end and span.label == label for span in spans)
        inside = {"bmes": "M", "bmewo": "M"}.get(name, "I")
        letters = [inside] * (end - start)
        if name in ("iob2", "iobes", "bilou", "bmes", "bmewo") or (name == "iob1" and touches):
            letters[0] = "B"
        if name in ("ioe2", "iobes", "bmes", "bmewo") or (name == "ioe1" and touched):
            letters[-1] = "E"
        if name == "bilou":
            letters[-1] = "L"
        if end - start == 1 and name in ("iobes", "bilou", "bmes", "bmewo"):
            letters = [{"bilou": "U", "bmewo": "W"}.get(name, "S")]
        tags[start:end] = [f"{letter}-{label}" for letter in letters]
    return tags


@st.composite
def sentences(draw: st.DrawFn) -> tuple[list[Span], int]:
    """Entities that may touch, and how many words there are."""
    spans, at = [], 0
    for _ in range(draw(st.integers(0, 5))):
        at += draw(st.integers(0, 2))
        end = at + draw(st.integers(1, 3))
        spans.append(Span(draw(st.sampled_from(LABELS)), at, end))
        at = end
    return spans, at + draw(st.integers(0, 2))


def check_legal(name: SchemeName, entities: tuple[list[Span], int]) -> None:
    spans, words = entities
    if name == "io":  # can't tell two that touch
        spans = spans_of_tags([f"I{tag[1:]}" if tag != "O" else tag for tag in tags_of_spans(spans, words)])
    tags = written(name, spans, words)
    scheme = recognise([tags], name)
    assert scheme.in_iob2(tags) == tags_of_spans(spans, words)
    one_touched = any(  # which seqeval's strict IOE1 doesn't begin with its E, though its default mode does
        name == "ioe1" and span.end - span.start == 1 and Span(span.label, span.end, other.end) == other
        for span in spans
        for other in spans
    )
    if name in STRICT and not one_touched:
        found = Entities([tags], STRICT[name]).entities[0]
        assert [Span(each.tag, each.start, each.end) for each in found] == spans
    suffixed = [tag if tag == "O" else f"{tag[2:]}_{tag[0].lower()}" for tag in tags]
    assert recognise([suffixed], name).in_iob2(suffixed) == tags_of_spans(spans, words)
    if "O" in tags:  # else S-PER alone could be a part of speech
        assert recognise([tags]).in_iob2(tags) == tags_of_spans(spans, words)


def check_any(name: SchemeName, gold: list[str], predicted: list[str]) -> None:
    """Valid or not: what is counted is what seqeval's default mode counts, its letters being ours."""
    scheme = Scheme(name)
    standard = str.maketrans({"L": "E", "U": "S", "M": "I", "W": "S"})
    theirs = [[tag[0].translate(standard) + tag[1:] for tag in tags] for tags in (gold, predicted)]
    ours = [scheme.in_iob2(tags) for tags in (gold, predicted)]
    for tags, iob2 in zip(theirs, ours, strict=True):
        wanted = [Span(label, first, last + 1) for label, first, last in get_entities(tags)]
        assert spans_of_tags(iob2) == wanted
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of divisions by zero
        wanted = f1_score([theirs[0]], [theirs[1]])
    assert entity_scores([ours[0]], [ours[1]]).micro.f1 == pytest.approx(wanted, abs=1e-12)


@st.composite
def any_tags(draw: st.DrawFn) -> tuple[SchemeName, list[str], list[str]]:
    name = draw(st.sampled_from(NAMES))
    tags = ["O", *(f"{letter}-{label}" for letter in {*Scheme(name).letters} for label in LABELS)]
    pairs = draw(st.lists(st.tuples(st.sampled_from(tags), st.sampled_from(tags)), max_size=9))
    return name, [gold for gold, _ in pairs], [tag for _, tag in pairs]


@FEW
@given(name=st.sampled_from(NAMES), entities=sentences())
def test_what_each_scheme_writes_is_read(name: SchemeName, entities: tuple[list[Span], int]) -> None:
    check_legal(name, entities)


@pytest.mark.parametrize(
    ("name", "spans", "words"),
    [
        ("iobes", [Span("a-b", 0, 1)], 1),
        ("ioe1", [Span("LOC", 3, 4), Span("LOC", 4, 5), Span("PER", 5, 8)], 9),
        ("ioe1", [Span("LOC", 0, 1), Span("LOC", 1, 4)], 4),
    ],
)
def test_what_random_trials_found(name: SchemeName, spans: list[Span], words: int) -> None:
    check_legal(name, (spans, words))


@FEW
@given(drawn=any_tags())
def test_scores_of_any_tags_are_seqevals(drawn: tuple[SchemeName, list[str], list[str]]) -> None:
    check_any(*drawn)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@MANY
@given(name=st.sampled_from(NAMES), entities=sentences(), drawn=any_tags())
def test_schemes_in_many_cases(
    name: SchemeName, entities: tuple[list[Span], int], drawn: tuple[SchemeName, list[str], list[str]]
) -> None:
    check_legal(name, entities)
    check_any(*drawn)


@pytest.mark.parametrize(
    ("tags", "name", "iob2"),
    [
        ("B-PER I-PER O B-LOC", "iob2", "B-PER I-PER O B-LOC"),
        ("I-PER I-PER O I-LOC", "io", "B-PER I-PER O B-LOC"),
        ("B–PER I–PER O B–LOC", "iob2", "B-PER I-PER O B-LOC"),
        ("I-PER B-PER O I-LOC", "iob1", "B-PER B-PER O B-LOC"),
        ("I-PER E-PER O E-LOC", "ioe2", "B-PER I-PER O B-LOC"),
        ("I-PER E-PER I-PER O", "ioe1", "B-PER I-PER B-PER O"),
        ("B-PER E-PER O S-LOC", "iobes", "B-PER I-PER O B-LOC"),
        ("B-PER L-PER O U-LOC", "bilou", "B-PER I-PER O B-LOC"),
        ("B-PER M-PER E-PER O S-LOC", "bmes", "B-PER I-PER I-PER O B-LOC"),
        ("B-PER M-PER E-PER O W-LOC", "bmewo", "B-PER I-PER I-PER O B-LOC"),
        ("B_ns M_ns E_ns o", "bmes", "B-ns I-ns I-ns O"),  # MSRA
        ("B-PER.NOM I-PER.NOM O", "iob2", "B-PER.NOM I-PER.NOM O"),  # Weibo
        ("B_PER I_PER E_PER O", "iobes", "B-PER I-PER I-PER O"),  # LST20
        ("PER-B PER-I O LOC-B", "iob2", "B-PER I-PER O B-LOC"),
        ("PER_B PER_I O LOC_B", "iob2", "B-PER I-PER O B-LOC"),
        ("b-per i-per o b-loc", "iob2", "B-per I-per O B-loc"),
        ("B-PER I-PER 0 B-LOC", "iob2", "B-PER I-PER O B-LOC"),
        ("B:PER I:PER O", "iob2", "B-PER I-PER O"),
        ("B-PER I-PER I-LOC O", "iob2", "B-PER I-PER B-LOC O"),
        ("PER PER O LOC", "io", "B-PER I-PER O B-LOC"),
        ("0 PERSON PERSON date", "io", "O B-PERSON I-PERSON B-date"),
        ("O O O O COMMA O PERIOD", NONE, "O O O O COMMA O PERIOD"),
        ("O O O . O ,", NONE, "O O O . O ,"),
        ("0 0 0 0 , 0 .", NONE, "0 0 0 0 , 0 ."),
        ("E S O E S S O E", NONE, "E S O E S S O E"),  # languages
        ("U L L O L U", NONE, "U L L O L U"),  # capitals
        ("O U O O U", NONE, "O U O O U"),
        ("NN VB DT IN", NONE, "NN VB DT IN"),
        ("N V O N S", NONE, "N V O N S"),  # Gimpel et al. 2011
        ("S-PRO A-PRO V V", NONE, "S-PRO A-PRO V V"),
        ("N_S V_S N_P", NONE, "N_S V_S N_P"),
        ("1 2 0 3", NONE, "1 2 0 3"),
    ],
)
def test_a_scheme_is_recognised_by_its_tags(tags: str, name: str, iob2: str) -> None:
    scheme = recognise([tags.split()])
    assert scheme.name == name
    assert scheme.in_iob2(tags.split()) == iob2.split()


@pytest.mark.parametrize(
    ("tags", "asked"),
    [
        ("B I O B I I", "scheme=iob2"),
        ("B M E S S", "scheme=bmes"),
        ("B E S B E", "scheme=iobes"),
        ("O O O COUNTRY DISEASE", "scheme=io"),
    ],
)
def test_where_it_is_unclear_the_scheme_is_asked_for_and_can_be_given(tags: str, asked: str) -> None:
    with pytest.raises(InputError, match=f"unclear whether .* Give {asked} if they do, or scheme=none"):
        recognise([tags.split()])
    name = asked.removeprefix("scheme=")
    assert recognise([tags.split()], name).fits([tags.split()])  # type: ignore[arg-type]
    assert recognise([tags.split()], NONE).in_iob2(tags.split()) == tags.split()


@pytest.mark.parametrize("outside", ["_", "-", "OUT", "None", "X"])
def test_another_mark_for_what_is_outside_of_entities_is_refused(outside: str) -> None:
    tags = ["B-PER", "I-PER", *[outside] * 4, "B-LOC"]
    for name in (None, "iob2"):
        with pytest.raises(InputError, match=rf"such as 'B-PER', but for '{outside}'\. Write O for"):
            recognise([tags], name)  # type: ignore[arg-type]
    assert recognise([tags], NONE).in_iob2(tags) == tags


def test_letters_that_no_scheme_has_together_are_refused_and_all_schemes_named() -> None:
    with pytest.raises(InputError, match=r"letters B, I, M, .* IOBES \(S, B, I, E\)"):
        recognise([["B-PER", "I-PER", "M-PER", "O"]])


def test_a_given_scheme_is_not_replaced_by_what_looks_like_another() -> None:
    tags = ["B-PER", "I-PER", "O", "S-X"]
    assert recognise([tags], "iob2").standard("S-X") is None
    assert recognise([tags], NONE).in_iob2(tags) == tags
    assert recognise([["I-PER", "I-PER"]], "iob1").name == "iob1"
