"""Codes of languages: what names one, and what is a slip."""

import pytest
from pydantic import TypeAdapter, ValidationError

from bertsmith.text.corpus_settings import AS_BUILT, Language

CODE: TypeAdapter[str] = TypeAdapter(Language)


def test_every_language_that_cldr_names_by_two_letters_is_one() -> None:
    """CLDR, by Babel. mo is Moldavian, which ISO 639-1 withdrew for ro."""
    babel = pytest.importorskip("babel")
    names = [code for code in babel.Locale("en").languages if len(code) == 2]
    assert len(names) > 180
    for code in {*names} - {"mo"}:
        assert CODE.validate_python(code) == code


@pytest.mark.parametrize(
    ("written", "code"),
    [
        *((code, code) for code in ("en", "yue", "wuu", "gsw", "ckb", "zh-hant", "sr-latn-rs", "sh")),
        *(("EN", "en"), ("de-AT", "de-at"), ("es-419", "es-419")),
    ],
)
def test_languages_and_their_regions_are_taken_in_any_letters(written: str, code: str) -> None:
    assert CODE.validate_python(written) == code


@pytest.mark.parametrize("slip", ["zz", "xx", "e", "", "english", "en_US", "en-", "-en", "d e", "12", "zzzz"])
def test_what_is_no_language_is_refused(slip: str) -> None:
    with pytest.raises(ValidationError, match="a language's code of ISO 639, such as en"):
        CODE.validate_python(slip)
    assert CODE.validate_python(slip, context=AS_BUILT) == slip


@pytest.mark.parametrize(("slip", "code"), [("eng", "en"), ("ger", "de"), ("deu-at", "de"), ("ZHO", "zh")])
def test_three_letters_of_a_language_that_has_two_are_refused_with_those(slip: str, code: str) -> None:
    with pytest.raises(ValidationError, match=f"expected {code}, the code of two letters"):
        CODE.validate_python(slip)
