"""The settings of a corpus build: how sources are read, and which documents are kept.

`Language`, the type of a language's code, is used by everything that reads text: two letters of ISO 639-1, or
three for a language without these.
"""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from bertsmith.validation import UserSettings

Format = Literal["auto", "file", "blank-lines", "lines", "wikiextractor", "jsonl", "csv", "tsv", "parquet"]

AS_BUILT = "as built"  # pydantic's context for settings that were saved before codes were checked

# The codes of ISO 639-1, each with the three-letter codes that ISO 639-2 has for the same language;
# and sh, which is withdrawn, but has a Wikipedia.
_CODES = """
    aa:aar ab:abk ae:ave af:afr ak:aka am:amh an:arg ar:ara as:asm av:ava ay:aym az:aze ba:bak be:bel
    bg:bul bh:bih bi:bis bm:bam bn:ben bo:bod/tib br:bre bs:bos ca:cat ce:che ch:cha co:cos cr:cre
    cs:ces/cze cu:chu cv:chv cy:cym/wel da:dan de:deu/ger dv:div dz:dzo ee:ewe el:ell/gre en:eng eo:epo
    es:spa et:est eu:eus/baq fa:fas/per ff:ful fi:fin fj:fij fo:fao fr:fra/fre fy:fry ga:gle gd:gla
    gl:glg gn:grn gu:guj gv:glv ha:hau he:heb hi:hin ho:hmo hr:hrv ht:hat hu:hun hy:hye/arm hz:her ia:ina
    id:ind ie:ile ig:ibo ii:iii ik:ipk io:ido is:isl/ice it:ita iu:iku ja:jpn jv:jav ka:kat/geo kg:kon
    ki:kik kj:kua kk:kaz kl:kal km:khm kn:kan ko:kor kr:kau ks:kas ku:kur kv:kom kw:cor ky:kir la:lat
    lb:ltz lg:lug li:lim ln:lin lo:lao lt:lit lu:lub lv:lav mg:mlg mh:mah mi:mri/mao mk:mkd/mac ml:mal
    mn:mon mr:mar ms:msa/may mt:mlt my:mya/bur na:nau nb:nob nd:nde ne:nep ng:ndo nl:nld/dut nn:nno
    no:nor nr:nbl nv:nav ny:nya oc:oci oj:oji om:orm or:ori os:oss pa:pan pi:pli pl:pol ps:pus pt:por
    qu:que rm:roh rn:run ro:ron/rum ru:rus rw:kin sa:san sc:srd sd:snd se:sme sg:sag sh:hbs si:sin sk:slk/slo
    sl:slv sm:smo sn:sna so:som sq:sqi/alb sr:srp ss:ssw st:sot su:sun sv:swe sw:swa ta:tam te:tel tg:tgk
    th:tha ti:tir tk:tuk tl:tgl tn:tsn to:ton tr:tur ts:tso tt:tat tw:twi ty:tah ug:uig uk:ukr ur:urd
    uz:uzb ve:ven vi:vie vo:vol wa:wln wo:wol xh:xho yi:yid yo:yor za:zha zh:zho/chi zu:zul
"""
_TWO_LETTERS = {
    other: code
    for code, others in (pair.split(":") for pair in _CODES.split())
    for other in others.split("/")
}
_TWO_LETTER_CODES = frozenset(_TWO_LETTERS.values())


def _require_language(code: str, info: ValidationInfo) -> str:
    """The code in lower case; BCP 47 allows any. Raises ValueError for what is no code of ISO 639.

    There are thousands of languages without a two-letter code, so any three letters are accepted unless
    ISO 639-2 has them for a language with one. The code of an existing index is accepted as it is.
    """
    if info.context == AS_BUILT:
        return code
    language, *parts = code.lower().split("-")
    if language in _TWO_LETTERS:
        raise ValueError(f"expected {_TWO_LETTERS[language]}, the code of two letters that this language has")
    is_known = language in _TWO_LETTER_CODES if len(language) == 2 else re.fullmatch("[a-z]{3}", language)
    if not is_known or not all(re.fullmatch("[a-z0-9]{1,8}", part) for part in parts):
        raise ValueError("expected a language's code of ISO 639, such as en, de or zh-hant")
    return "-".join([language, *parts])


Language = Annotated[str, AfterValidator(_require_language)]


class CorpusSettings(UserSettings):
    """Every choice of `bertsmith corpus build`; the defaults live here and nowhere else."""

    format: Format = Field(default="auto", description="How documents lie in files; auto looks at each file.")
    text_column: str = Field(
        default="text", description="Column or key of the text in tables and JSON lines."
    )
    language: Language = Field(default="en", description="Two-letter code, for splitting into sentences.")
    encoding: str = Field(default="utf-8", description="Encoding of files without a byte-order mark.")
    encoding_errors: Literal["strict", "replace"] = Field(
        default="strict", description="Bad bytes: stop, or put U+FFFD."
    )
    include: tuple[str, ...] = Field(
        default=(), description="Glob patterns: read only files with such names."
    )
    exclude: tuple[str, ...] = Field(
        default=(), description="Glob patterns: leave out files with such names."
    )
    heldout: float = Field(
        default=0.01, ge=0, lt=1, description="Share of documents held out for evaluation."
    )
    near_duplicates: bool = Field(default=True, description="Drop documents nearly equal to an earlier one.")
    # Of pairs with similarity 0.8, signatures find 92 in 100; with 0.7 it would be 56, with 0.5 five.
    near_duplicate_threshold: float = Field(
        default=0.8, ge=0.8, le=1, description="How alike: Jaccard similarity of 5-word runs."
    )
    min_words: int = Field(default=1, ge=1, description="Documents with fewer words are dropped.")
    licence: str = Field(default="", description="The text's licence, for the manifest.")
