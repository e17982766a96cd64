"""BERT's words: what its normaliser and its splitting at punctuation make of text between two blanks."""

import re
from typing import TYPE_CHECKING

from tokenizers import normalizers, pre_tokenizers

if TYPE_CHECKING:
    import pyarrow as pa

#: In ASCII the rules come to this: letters and digits hold together, any other character is a word.
ASCII_PUNCTUATION = r"[!-/:-@\[-`{-~]"
ASCII_WORD = re.compile(rf"[0-9A-Za-z]+|{ASCII_PUNCTUATION}")
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
        return self._by_library(run)

    def of_column(self, runs: "pa.Array") -> tuple["pa.Array", "pa.Array"]:
        """The words of a column of runs, none of them empty, and the index of the run that each is from.

        The order of the words is not that of the runs. Five times as fast as run by run.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        plain = pc.match_substring_regex(runs, f"^{PRINTABLE_ASCII.pattern}$")
        ascii_runs = runs.filter(plain)
        spaced = pc.replace_substring_regex(
            pc.ascii_lower(ascii_runs) if self._lowercase else ascii_runs, ASCII_PUNCTUATION, r" \0 "
        )
        words = pc.ascii_split_whitespace(pc.ascii_trim_whitespace(spaced))
        others = pc.invert(plain)
        other_words = pa.array(map(self._by_library, runs.filter(others).to_pylist()), words.type)
        parts = [(plain, words), (others, other_words)]
        return (
            pa.concat_arrays([lists.flatten() for _, lists in parts]),
            pa.concat_arrays(
                [pc.indices_nonzero(which).take(pc.list_parent_indices(lists)) for which, lists in parts]
            ),
        )

    def _by_library(self, run: str) -> list[str]:
        normalised = self._normalizer.normalize_str(run)
        return [word for word, _ in self._pre_tokenizer.pre_tokenize_str(normalised)]
