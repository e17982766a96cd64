"""Special tokens stand where the tokenizer's file says, as transformers puts them."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, processors

from bertsmith.errors import ModelError, TokenizerError
from bertsmith.model.config import BertConfig
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.tasks.examples.encoding import join_segments, special_tokens
from bertsmith.text.tokens.byte_level import build_byte_level_backend
from bertsmith.text.tokens.sequence_rules import SequenceTemplate
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.wordpiece import build_wordpiece_backend

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]


def modern_folder(folder: Path, template: str) -> Path:
    """A byte-level vocabulary with BERT's special tokens, as ModernBERT's and Ettin's."""
    vocabulary = {piece: number for number, piece in enumerate([*SPECIAL, *BYTES])}
    backend = Backend(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    ids = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    if template:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair=template, special_tokens=ids
        )
    backend.add_special_tokens(SPECIAL)
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    named = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(
    "pair", ["[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", "[CLS] $A [SEP] $B [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]"]
)
def test_a_pair_is_joined_as_the_file_says(pair: str, tmp_path: Path) -> None:
    folder = modern_folder(tmp_path / "tokenizer", pair)
    ours, theirs = Tokenizer.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
    first, second = ours.encode("some words").ids, ours.encode("others").ids
    for texts, pieces in ((("some words",), (first,)), (("some words", "others"), (first, second))):
        expected = theirs(*texts, return_token_type_ids=True)
        token_ids, segment_ids = join_segments(ours, *pieces)
        assert token_ids.tolist() == expected["input_ids"]
        assert segment_ids.tolist() == expected["token_type_ids"]
        assert special_tokens(ours, len(texts)) == len(token_ids) - sum(map(len, pieces))


def test_a_file_without_a_template_has_berts_where_its_first_token_is_berts(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(modern_folder(tmp_path / "tokenizer", ""))
    assert tokenizer.template == SequenceTemplate((1,), (2,), (2,), (0, 1))


def test_a_folder_saved_from_a_file_without_a_template_has_the_one_that_was_used(tmp_path: Path) -> None:
    ours = Tokenizer.load(modern_folder(tmp_path / "tokenizer", ""))
    ours.save(tmp_path / "saved")
    theirs, again = (
        transformers.AutoTokenizer.from_pretrained(tmp_path / "saved"),
        Tokenizer.load(tmp_path / "saved"),
    )
    first, second = ours.encode("some words").ids, ours.encode("others").ids
    expected = theirs("some words", "others", return_token_type_ids=True)
    assert [ids.tolist() for ids in join_segments(ours, first, second)] == [
        expected["input_ids"],
        expected["token_type_ids"],
    ]
    assert theirs("some words")["input_ids"] == join_segments(ours, first)[0].tolist()
    assert (again.template, again.sha256) == (ours.template, ours.sha256)


def test_a_model_that_learned_without_special_tokens_is_refused(tmp_path: Path) -> None:
    folder = modern_folder(tmp_path / "model", "")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert 1 not in theirs("some words")["input_ids"]
    config = BertConfig(vocab_size=300, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    with pytest.raises(ModelError, match="puts no special tokens around texts"):
        load_own_tokenizer(folder, config)


@pytest.mark.parametrize("pair", ["[CLS] $A [SEP] $B [SEP]", "[CLS] $A [SEP] [SEP] $B:1 [SEP]:1"])
def test_a_template_that_the_folders_class_doesnt_follow_is_refused(pair: str, tmp_path: Path) -> None:
    pieces = [*SPECIAL, "a", "b"]
    backend = Backend(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=pair, special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    Tokenizer.load(tmp_path)  # the file alone is followed
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)("a", "b")
    assert (theirs["input_ids"], theirs["token_type_ids"]) == ([1, 5, 2, 6, 2], [0, 0, 0, 1, 1])
    with pytest.raises(TokenizerError, match="than BertTokenizer, transformers"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("scheme", "changes"),
    [
        ("BERT's", {"normalizer": normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])}),
        ("BERT's", {"pre_tokenizer": pre_tokenizers.Whitespace()}),  # leaves "!!" one
        ("RoBERTa's", {"normalizer": normalizers.Lowercase()}),
        ("RoBERTa's", {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)}),
    ],
)
def test_a_division_of_texts_that_the_folders_class_doesnt_follow_is_refused(
    scheme: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Oracles: the tokenizers library on the file, transformers on the folder."""
    special = dict(zip(("unk", "cls", "sep", "pad", "mask"), SPECIAL, strict=True))
    if scheme == "BERT's":
        backend, name = (
            build_wordpiece_backend([*SPECIAL, "a", "é", "!", "!!"], special, lowercase=False),
            "Bert",
        )
    else:
        vocabulary = {piece: number for number, piece in enumerate([*SPECIAL, *BYTES, "aĠ"])}
        backend = build_byte_level_backend(vocabulary, [("a", "Ġ")], special, add_prefix_space=False)
        name = "Roberta"
    name += "Tokenizer"
    settings = {f"{role}_token": token for role, token in special.items()} | {"tokenizer_class": name}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    for part, value in changes.items():
        setattr(backend, part, value)
    backend.save(str(tmp_path / "tokenizer.json"))
    text = "A a é !!"
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"]
    assert theirs != backend.encode(text).ids
    with pytest.raises(TokenizerError, match=f"divides texts otherwise than {name}, transformers"):
        Tokenizer.load(tmp_path)
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # as the refusal says
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)(text, add_special_tokens=False)
    assert Tokenizer.load(tmp_path).encode(text).ids == theirs["input_ids"]


def test_small_letters_before_an_uncased_tokenizer_change_nothing(tmp_path: Path) -> None:
    """As sentence-transformers saves do_lower_case; transformers' class reads the folder as without them."""
    special = dict(zip(("unk", "cls", "sep", "pad", "mask"), SPECIAL, strict=True))
    backend = build_wordpiece_backend([*SPECIAL, "a", "b"], special, lowercase=True)
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), backend.normalizer])
    backend.save(str(tmp_path / "tokenizer.json"))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)("A b Á", add_special_tokens=False)
    assert Tokenizer.load(tmp_path).encode("A b Á").ids == theirs["input_ids"] == [5, 6, 5]


PARTS = st.tuples(st.sampled_from(["[CLS]", "[SEP]"]), st.integers(0, 1))
AROUND = st.lists(PARTS, max_size=2)
SEGMENT = st.integers(0, 1)


@st.composite
def templates(draw: st.DrawFn) -> dict[str, Any]:
    """Any; and often a pair's and a single one that fit each other but for one part, or in all."""
    before, between, behind = draw(AROUND), draw(AROUND), draw(AROUND)
    first, second = draw(SEGMENT), draw(SEGMENT)
    single = [*before, ("A", first), *behind]
    pair = [*before, ("A", first), *between, ("B", second), *behind]
    kind = draw(st.sampled_from(["fitting", "fitting", "any", "turned round"]))
    if kind == "fitting":
        single = [(name, 0) for name, _ in single]
        place = pair.index(("B", second))
        pair = [(name, first if at < place else second) for at, (name, _) in enumerate(pair)]
    elif kind == "any":
        single = [*draw(AROUND), ("A", draw(SEGMENT)), *draw(AROUND)]
    else:
        pair = [*before, ("B", second), *between, ("A", first), *behind]
    return template_processing(single, pair)


def template_processing(single: list[tuple[str, int]], pair: list[tuple[str, int]]) -> dict[str, Any]:
    def part(name: str, segment: int) -> dict[str, Any]:
        return {"Sequence" if name in "AB" else "SpecialToken": {"id": name, "type_id": segment}}

    special = {name: {"id": name, "ids": [id], "tokens": [name]} for name, id in (("[CLS]", 1), ("[SEP]", 2))}
    return {
        "type": "TemplateProcessing",
        "single": [part(*each) for each in single],
        "pair": [part(*each) for each in pair],
        "special_tokens": special,
    }


BERTS, ROBERTAS = (
    {"type": name, "cls": ["[CLS]", 1], "sep": ["[SEP]", 2]}
    for name in ("BertProcessing", "RobertaProcessing")
)
OFFSETS = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
ANY_PROCESSOR = st.one_of(
    templates(),
    templates(),
    st.lists(st.one_of(templates(), st.sampled_from([BERTS, ROBERTAS, OFFSETS])), min_size=1, max_size=3).map(
        lambda processors: {"type": "Sequence", "processors": processors}
    ),
)


def joined_as_the_library_or_refused(processor: dict[str, Any]) -> None:
    """Own definition of what can be joined: X text Z, and X first Y second Z, whose segments are 0, and one
    up to Y's end and one from there on.
    """
    vocabulary = {piece: number for number, piece in enumerate([*SPECIAL, *BYTES])}
    content = json.loads(Backend(models.BPE(vocabulary, [])).to_str())
    content |= {"pre_tokenizer": OFFSETS, "post_processor": processor}
    adding = [one for one in processor.get("processors", []) if one["type"] != "ByteLevel"]
    if len(adding) > 1:  # of some, the library panics on a pair
        with (
            TemporaryDirectory() as folder,
            pytest.raises(TokenizerError, match=r"only one processor|expected the texts"),
        ):
            (Path(folder) / "tokenizer.json").write_text(json.dumps(content))
            Tokenizer.load(folder)
        return
    library = Backend.from_str(json.dumps(content))
    first, second = library.encode("xy", add_special_tokens=False).ids, [vocabulary["z"]]
    single, pair = library.encode("xy"), library.encode("xy", "z")
    start, end = pair.ids.index(first[0]), pair.ids.index(second[0])
    before, behind = pair.ids[:start], pair.ids[end + 1 :]
    possible = (
        start < end
        and single.ids == [*before, *first, *behind]
        and not any(single.type_ids)
        and len(set(pair.type_ids[:end])) == len(set(pair.type_ids[end:])) == 1
    )
    adds_nothing = single.ids == first and pair.ids == [*first, *second]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_text(json.dumps(content))
        if len(pair.ids) - 3 > 6 or not (possible or adds_nothing):
            with pytest.raises(TokenizerError, match=r"its post-processor|expected the texts"):
                Tokenizer.load(path)
            return
        tokenizer = Tokenizer.load(path)
    if adds_nothing:
        assert tokenizer.template == SequenceTemplate((1,), (2,), (2,), (0, 1))
        return
    for texts, encoding in (((first,), single), ((first, second), pair)):
        token_ids, segment_ids = join_segments(tokenizer, *texts)
        assert (token_ids.tolist(), segment_ids.tolist()) == (encoding.ids, encoding.type_ids)


FEW = settings(derandomize=True, max_examples=25, deadline=None)
MANY = settings(derandomize=True, max_examples=3_000, deadline=None)
any_processor = given(ANY_PROCESSOR)
test_texts_are_joined_as_the_library_does_or_refused = FEW(any_processor(joined_as_the_library_or_refused))
test_texts_are_joined_as_the_library_does_or_refused_thousands_of_times = pytest.mark.slow(
    MANY(any_processor(joined_as_the_library_or_refused))
)


def test_roberta_has_two_separators_and_one_segment(tmp_path: Path) -> None:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *BYTES, "<mask>"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = Tokenizer.load(tmp_path)
    token_ids, segment_ids = join_segments(tokenizer, [10, 11], [12])
    assert token_ids.tolist() == [0, 10, 11, 2, 2, 12, 2]
    assert not np.any(segment_ids)
    assert (special_tokens(tokenizer, 1), special_tokens(tokenizer, 2)) == (2, 4)
