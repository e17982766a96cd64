"""BERT's words: what its normaliser and its splitting at punctuation make of text between two blanks."""

import re

from tokenizers import normalizers, pre_tokenizers

#: In ASCII the rules come to this: letters and digits hold together, any other character is a word.
ASCII_WORD = re.compile(r"[0-9A-Za-z]+|[!-/:-@\[-`{-~]")
PRINTABLE_ASCII = re.compile(r"[!-~]*")


class BertWords:
    """Splits one run of non-blank characters ("Don't") into words ("don", "'", "t").

    The same as the library's normaliser and pre-tokenizer, which never look past a blank; ASCII, most of
    most corpora, is split here, because calling the library takes five times as long.
    """

    def __init__(self, normalizer: normalizers.BertNormalizer) -> None:
        self._normalizer = normalizer
        self._lowercase: bool = normalizer.lowercase
        self._pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def __call__(self, run: str) -> list[str]:
        if PRINTABLE_ASCII.fullmatch(run):
            return ASCII_WORD.findall(run.lower() if self._lowercase else run)
        normalised = self._normalizer.normalize_str(run)
        return [word for word, _ in self._pre_tokenizer.pre_tokenize_str(normalised)]
