"""Japanese BERTs with MeCab, compared with transformers' BertJapaneseTokenizer reading the same folder."""

import json
import pickle
import random
import sys
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith.cli.main import main
from bertsmith.data.batch import PackedBatch, Sequences
from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.errors import MissingExtra, TokenizerError
from bertsmith.inference.checking.check import check_model
from bertsmith.inference.embedding.vector_file import read_vectors
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import save_checkpoint
from bertsmith.model.config import make_config
from bertsmith.model.own_tokenizer import read_own_tokenizer
from bertsmith.tasks.checkpoints.sentence_folder import write_sentence_folder
from bertsmith.text.tokens import japanese
from bertsmith.text.tokens.extension import add_pieces
from bertsmith.text.tokens.pieces import count_piece_characters
from bertsmith.text.tokens.pruning import count_pieces, prune
from bertsmith.text.tokens.tokenizer import Tokenizer
from live_server import live_server
from random_encoder import randomise

fugashi = pytest.importorskip("fugashi")
transformers = pytest.importorskip("transformers")
BertJapaneseTokenizer = transformers.BertJapaneseTokenizer

SENTENCES = [
    "今日はいい天気ですね。明日も晴れるといいなあと思います。",
    "すもももももももものうち",
    "東京都千代田区にある国立国会図書館は、一九四八年に設立された。",
    "彼女は「ありがとう」と言って、駅の方へ走っていった。",
    "この商品の税込価格は１，２３４円（送料別）です。",
    "ﾊﾝｶｸｶﾀｶﾅとＡＢＣ、㍿サンプル、①番、㌔、ﾊﾟﾋﾟﾌﾟ",
    "Ｐｙｔｈｏｎ 3.11で自然言語処理を学ぶ！ https://example.com/日本語",
    "量子コンピューターの研究が、世界中で進められている。",
    "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。",
    "メールアドレスはtaro.yamada@example.co.jpまでお願いします。",
    "春はあけぼの。やうやう白くなりゆく山ぎは、すこしあかりて。",
    "株価は前日比で二・五パーセント下落し、三万円を割り込んだ。",
    "お問い合わせは、平日の９時～１８時の間にお電話ください。",
    "雨にも負けず　風にも負けず　雪にも夏の暑さにも負けぬ",
]
ODD = [
    *(
        "\u3000",
        " ",
        "\n",
        "\t",
        "e\u0301",
        "か\u3099",
        "ｶﾞ",
        "\u1112\u1161\u11ab",
        "\U0001f600",
        "\U0001f468\u200d\U0001f469",
    ),
    *(
        "㍻",
        "ﷺ",
        "ﬁ",
        "½",
        "x\u0323\u0307",
        "\u2028",
        "\x85",
        "\ufffd",
        "İ",
        "ẞ",
        "ΣΑΣ",
        "K",
        "\u0301",
        "〜",
        "[MASK]",
        "[SEP]",
        "[UNK]",
    ),
    *("𠮷野家", "\u200b", "\ufeff", "＃", "\xa0", "\x1f", "あ゙", "\u0e33", "…"),
]


def random_text(draw: random.Random) -> str:
    parts = []
    for _ in range(draw.randint(1, 6)):
        source = draw.choice(SENTENCES)
        start = draw.randrange(len(source))
        parts += [source[start : start + draw.randint(1, 14)], draw.choice(["", "", draw.choice(ODD)])]
    return "".join(parts)


def japanese_folder(folder: Path, **settings: Any) -> Path:
    """A tokenizer as tohoku-nlp/bert-base-japanese-v3 has it, over the words and letters of SENTENCES."""
    folder.mkdir(parents=True, exist_ok=True)
    splitter = japanese.MecabSplitter()
    counts = Counter(word.spelling for sentence in SENTENCES for word in splitter.split(sentence))
    words = [word for number, word in enumerate(counts) if number % 3]  # the others are in pieces, or unknown
    letters = sorted({letter for word in counts for letter in word})[1::7] + list("abcdemoprtxA1234")
    letters += [letter for word in counts for letter in word if "ぁ" <= letter <= "ヶ"]
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *words,
        *letters,
        *("##" + letter for letter in letters),
    ]
    (folder / "vocab.txt").write_text(
        "".join(f"{piece}\n" for piece in dict.fromkeys(pieces)), encoding="utf-8"
    )
    usual = {
        "do_lower_case": False,
        "word_tokenizer_type": "mecab",
        "subword_tokenizer_type": "wordpiece",
        "mecab_kwargs": {"mecab_dic": "unidic_lite"},
        "tokenizer_class": "BertJapaneseTokenizer",
        "model_max_length": 512,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(usual | settings), encoding="utf-8")
    return folder


KINDS: dict[str, dict[str, Any]] = {
    "v3": {},
    "v3-char": {"subword_tokenizer_type": "character"},
    "v2": {"mecab_kwargs": {"mecab_dic": "ipadic"}},
    "uncased": {"do_lower_case": True},
    "uncased-char": {"do_lower_case": True, "subword_tokenizer_type": "character"},
    "basic": {"word_tokenizer_type": "basic", "mecab_kwargs": None},
    "basic-uncased": {"word_tokenizer_type": "basic", "do_lower_case": True},
}
kinds = pytest.mark.parametrize("kind", KINDS)
with_mecab = pytest.mark.parametrize("kind", [kind for kind in KINDS if "basic" not in kind])


@kinds
def test_tokens_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    folder, draw = japanese_folder(tmp_path, **KINDS[kind]), random.Random(3)
    tokenizer, theirs = Tokenizer.load(folder), BertJapaneseTokenizer.from_pretrained(folder)
    texts = ["", " ", *SENTENCES, *ODD, *(random_text(draw) for _ in range(1500))]
    for text in texts:
        expected = theirs.convert_tokens_to_ids(theirs.tokenize(text))
        assert tokenizer.encode(text, read_special_tokens=True).ids == expected, text
        if "basic" in kind and any(token in text for token in theirs.all_special_tokens):
            continue  # it keeps them whole
        as_text = theirs.convert_tokens_to_ids(theirs._tokenize(text))
        assert tokenizer.encode(text).ids == as_text, text
    assert [list(ids) for ids in tokenizer.encode_batch(texts)] == [
        tokenizer.encode(text).ids for text in texts
    ]
    assert tokenizer.unk_id in tokenizer.encode(SENTENCES[0] + SENTENCES[2]).ids


@with_mecab
def test_offsets_point_at_what_a_token_stands_for(kind: str, tmp_path: Path) -> None:
    """Each span, normalised, holds its token; spans come in order and leave out nothing but blanks."""
    tokenizer, draw = Tokenizer.load(japanese_folder(tmp_path, **KINDS[kind])), random.Random(4)
    for text in [*SENTENCES, *ODD, *(random_text(draw) for _ in range(800))]:
        encoding, end = tokenizer.encode(text), 0
        for token, (start, stop) in zip(encoding.tokens, encoding.offsets, strict=True):
            assert 0 <= start < stop <= len(text)
            assert not text[end:start].strip().strip("\x1f\x85\u2028"), text
            normalised = unicodedata.normalize("NFKC", text[start:stop])
            if tokenizer.splitter.lowercase:  # type: ignore[union-attr]
                normalised = normalised.lower()
            assert token == "[UNK]" or token.removeprefix("##") in normalised, (text, token)
            end = max(end, stop)
        spans = tokenizer.encode_pieces([text])[0].offsets
        assert list(map(tuple, np.asarray(spans).tolist())) == encoding.offsets


def test_offsets_where_the_normalised_text_is_longer_or_shorter(tmp_path: Path) -> None:
    folder = japanese_folder(tmp_path, subword_tokenizer_type="character")
    tokenizer, text = Tokenizer.load(folder), "㍿のﾊﾟはか\u3099と㌔"
    spelt = [(start, end) for start, end in tokenizer.encode(text).offsets]
    assert spelt == [(0, 1)] * 4 + [(1, 2), (2, 4), (4, 5), (5, 7), (7, 8), (8, 9), (8, 9)]


def test_words_are_those_of_mecab_and_masked_whole(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(japanese_folder(tmp_path))
    tagger = fugashi.GenericTagger(f'-d "{sys.modules["unidic_lite"].DICDIR}" -r /dev/null')
    for text in SENTENCES:
        encoding = tokenizer.encode(text)
        begins = tokenizer.begins_words(encoding.ids).sum()
        words = tagger(unicodedata.normalize("NFKC", text))
        assert begins == len(words)
    ids = tokenizer.encode("".join(SENTENCES)).ids
    numbers = np.array([tokenizer.cls_id, *ids, tokenizer.sep_id])
    masker = Masker(tokenizer, MaskingRates(mask_rate=0.4, masked=1.0, random=0.0, whole_words=True))
    of_word = np.cumsum(tokenizer.begins_words(ids))
    assert len(ids) > of_word[-1]
    for key in range(10):
        sequences = Sequences(
            numbers, numbers * 0, np.array([len(numbers)]), np.array([key], np.uint64), np.array([0])
        )
        masked = (
            masker.draw(sequences, PackedBatch.of(sequences)).token_ids.numpy()[1:-1] == tokenizer.mask_id
        )
        assert all(len(set(masked[of_word == word].tolist())) == 1 for word in of_word.tolist())


@kinds
def test_what_is_saved_opens_here_and_in_transformers(kind: str, tmp_path: Path) -> None:
    folder, draw = japanese_folder(tmp_path / "hub", **KINDS[kind]), random.Random(9)
    tokenizer = Tokenizer.load(folder)
    tokenizer.save(tmp_path / "saved")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    original = BertJapaneseTokenizer.from_pretrained(folder)
    again, copied = Tokenizer.load(tmp_path / "saved"), pickle.loads(pickle.dumps(tokenizer))
    assert again.sha256 == tokenizer.sha256 == copied.sha256
    for text in [*SENTENCES, *(random_text(draw) for _ in range(200))]:
        assert again.encode(text) == copied.encode(text) == tokenizer.encode(text)
        assert theirs(text)["input_ids"] == original(text)["input_ids"]
        assert tokenizer.template.behind == (3,)
    pair = theirs(SENTENCES[0], SENTENCES[1])
    assert sorted(set(pair["token_type_ids"])) == [0, 1]


def test_two_kinds_over_one_vocabulary_have_other_hashes(tmp_path: Path) -> None:
    hashes = {Tokenizer.load(japanese_folder(tmp_path / kind, **KINDS[kind])).sha256 for kind in KINDS}
    assert len(hashes) == len(KINDS)


def test_a_nul_hides_nothing_and_half_a_pair_is_replaced(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(japanese_folder(tmp_path))
    assert tokenizer.encode("今日\x00明日").tokens == tokenizer.encode("今日 明日").tokens
    assert tokenizer.encode("今日\ud83d").ids == tokenizer.encode("今日\ufffd").ids
    assert list(tokenizer.encode_batch(["今日\ud83d"])[0]) == tokenizer.encode("今日\ufffd").ids


def test_a_long_text_is_cut_behind_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.load(japanese_folder(tmp_path))
    text = "".join(SENTENCES[:1] * 40)
    whole = tokenizer.encode(text)
    monkeypatch.setattr(japanese, "PART", 100)
    parts = list(japanese._cut(text, 0, len(text)))
    assert "".join(part for _, part, _ in parts) == text and max(len(part) for _, part, _ in parts) <= 100
    assert all(part.endswith("。") for _, part, _ in parts)
    assert tokenizer.encode(text) == whole
    some = tokenizer.encode_batch([text], enough=30)[0]
    assert 30 <= len(some) < 100 and list(some) == whole.ids[: len(some)]
    endless = "あ" * 1000
    assert sum(stop - start for start, stop in tokenizer.encode(endless).offsets) == 1000


def test_added_tokens_are_found_before_words_are(tmp_path: Path) -> None:
    folder = japanese_folder(tmp_path)
    names = (folder / "vocab.txt").read_text().count("\n")
    (folder / "added_tokens.json").write_text(json.dumps({"[世界]": names}))
    tokenizer = Tokenizer.load(folder)
    encoding = tokenizer.encode("今日の[世界]は[MASK]")
    assert encoding.tokens.count("[世界]") == 1 and "[MASK]" not in encoding.tokens
    assert encoding.offsets[encoding.tokens.index("[世界]")] == (3, 7)
    tokenizer.save(tmp_path / "saved")
    theirs = BertJapaneseTokenizer.from_pretrained(tmp_path / "saved")
    assert theirs.tokenize("今日の[世界]は").count("[世界]") == 1
    assert Tokenizer.load(tmp_path / "saved").encode("今日の[世界]は[MASK]") == encoding


def test_fewer_pieces_spell_the_counted_texts_alike(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(japanese_folder(tmp_path))
    pruned = prune(tokenizer, count_pieces(tokenizer, SENTENCES[:5]))
    assert len(pruned.kept) < tokenizer.vocab_size
    for text in SENTENCES[:5]:
        assert pruned.tokenizer.encode(text).tokens == tokenizer.encode(text).tokens
    assert count_piece_characters(tokenizer)[tokenizer.token_to_id("[CLS]")] == 0
    with pytest.raises(TokenizerError, match="A Japanese vocabulary can't be extended by words"):
        add_pieces(tokenizer, ["言葉"])


def test_small_letters_come_before_the_words(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(japanese_folder(tmp_path)).in_small_letters()
    assert tokenizer.encode("TARO").ids == tokenizer.encode("taro").ids
    assert Tokenizer.load(tmp_path, lowercase=True).encode("TARO").ids == tokenizer.encode("taro").ids


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"word_tokenizer_type": "sudachi"}, "word_tokenizer_type is 'sudachi'.*Use a model"),
        ({"word_tokenizer_type": "jumanpp"}, "word_tokenizer_type is 'jumanpp'.*Use a model"),
        (
            {"subword_tokenizer_type": "sentencepiece"},
            "subword_tokenizer_type is 'sentencepiece'.*tokenizer.json",
        ),
        ({"mecab_kwargs": {"mecab_dic": None}}, "mecab_dic is None; expected unidic_lite, ipadic, unidic"),
        ({"mecab_kwargs": {"mecab_option": "-d /etc"}}, "mecab_kwargs has 'mecab_option'"),
        ({"mecab_kwargs": {"normalize_text": False}}, "mecab_kwargs has 'normalize_text'"),
        ({"do_word_tokenize": False}, "do_word_tokenize is false"),
        ({"word_tokenizer_type": "basic", "subword_tokenizer_type": "character"}, "MeCab's words alone"),
        ({"tokenizer_class": "KoBertTokenizer"}, "the tokenizer is a 'KoBertTokenizer'"),
    ],
)
def test_other_rules_are_refused_by_name(settings: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=complaint):
        Tokenizer.load(japanese_folder(tmp_path, **settings))


@pytest.mark.parametrize("module", ["fugashi", "unidic_lite", "ipadic", "unidic"])
def test_a_missing_dictionary_is_one_sentence(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = japanese_folder(tmp_path, mecab_kwargs={"mecab_dic": module.replace("fugashi", "ipadic")})
    monkeypatch.setitem(sys.modules, module, None)
    japanese._open_mecab.cache_clear()
    expected = (
        "needs the dictionary unidic: pip install unidic && python -m unidic download"
        if module == "unidic"
        else f"needs the package {module.replace('_', '-')}: pip install 'bertsmith\\[japanese\\]'"
    )
    with pytest.raises(MissingExtra if module != "unidic" else TokenizerError, match=expected):
        Tokenizer.load(folder)


@pytest.mark.parametrize("kind", ["v3", "v3-char", "basic-uncased"])
def test_a_japanese_sentence_folder_has_the_numbers_of_other_libraries(kind: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(japanese_folder(tmp_path / "tokenizer", **KINDS[kind]))
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = make_config(shape | {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 130}, "test")
    model = Bert(config)
    randomise(model)
    states = {f"encoder.{name}": tensor for name, tensor in model.state_dict().items()}
    folder = tmp_path / "model"
    save_checkpoint(folder, states, config, "BertModel", task="encoder", tokenizer=tokenizer)
    found = check_model(folder, against="transformers").comparisons["float32"]
    assert found.agrees, found.differences
    write_sentence_folder(folder, config, "mean", 32)
    assert read_own_tokenizer(folder).encode(SENTENCES[0]) == tokenizer.encode(SENTENCES[0])
    found = check_model(folder, against="sentence-transformers").comparisons["float32"]
    assert found.agrees, found.differences


@pytest.mark.parametrize("kind", ["v3", pytest.param("v3-char", marks=pytest.mark.slow)])
def test_every_command_takes_a_japanese_model(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    theirs = BertJapaneseTokenizer.from_pretrained(japanese_folder(tmp_path / "model", **KINDS[kind]))
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=len(theirs), max_position_embeddings=130, **shape)
    transformers.BertForMaskedLM(config).save_pretrained("model")
    rows = [
        {"text": text, "label": ["天気", "東京"][number % 2]} for number, text in enumerate(SENTENCES * 2)
    ]
    tagged = [
        {"text": text, "spans": [{"start": 0, "end": 2, "label": "LOC"}] if "東京" in text[:2] else []}
        for text in SENTENCES
    ]
    for name, lines in (("rows", rows), ("tagged", tagged)):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    steps = ["epochs=1", "batch_size=8", "optimizer.warmup=0.5", "hardware.threads=1"]
    for task, name in (("classification", "rows"), ("tagging", "tagged")):
        data = ["--train", f"{name}.jsonl", "--dev", f"{name}.jsonl", "--out", task]
        assert main(["finetune", task, "--model", "model", *data, *steps]) == 0
        assert main(["predict", f"{task}/model", "rows.jsonl", "--out", f"{task}.jsonl"]) == 0
        assert main(["check", f"{task}/model"]) == 0
    labels = [json.loads(line)["label"] for line in Path("classification.jsonl").read_text().splitlines()]
    assert len(labels) == len(rows) and set(labels) <= {"天気", "東京"}
    answers = [json.loads(line) for line in Path("tagging.jsonl").read_text().splitlines()]
    assert all("".join(answer["words"]) == "".join(answer["text"].split()) for answer in answers)
    assert main(["embed", "model", "rows.jsonl", "--out", "vectors.parquet"]) == 0
    assert len(read_vectors("vectors.parquet").ids) == len(rows)
    with live_server("weather=classification/model") as server:
        answer = server.ask("/v1/weather", {"inputs": [SENTENCES[0]]})
    assert answer.json()["results"][0]["label"] == labels[0]
    capfd.readouterr()
    assert main(["export", "classification/model", "--gate", "rows.jsonl", "--out", "onnx"]) == 2
    assert "MeCab divides its texts into words, which no tokenizer.json says" in capfd.readouterr().err
    assert not Path("onnx").exists()
    Path("texts.txt").write_text("".join(f"{text}\n" for text in SENTENCES))
    assert (
        main(["corpus", "build", "texts.txt", "--language", "ja", "--heldout", "0", "--out", "corpus"]) == 0
    )
    pieces = ["--kind", "unigram", "--vocab-size", "280", "--out", "pieces"]
    assert main(["tokenizer", "train", "corpus", *pieces]) == 0
    tokenizer = Tokenizer.load("pieces")
    assert all(tokenizer.unk_id not in tokenizer.encode(text).ids for text in SENTENCES)
