"""Learns a Unigram vocabulary, as SentencePiece does (Kudo 2018, section 3.2), with one result however often.

The text is cut into units: words, each behind its "▁", cut again where the script changes and around digits.
In a script without blanks a unit is what stands between blanks and punctuation. The frequent substrings of
the units are the first pieces. Then, until few enough are left: expectation maximisation gives each piece its
probability, and those go without which the text becomes least unlikely.

    U   distinct units                  P   pieces
    C   characters of all units         E   edges: places in units where a piece may stand

All is done in NumPy, many units at a time, and added up in one order, so that no number of threads and no
hash table has a say. Only +, -, *, / and comparisons decide, so that all machines get the same.
"""

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tokenizers import normalizers

from bertsmith.progress import Progress
from bertsmith.text.tokens.unigram import MARK
from bertsmith.text.words import ANY_SCRIPT, DIGITS, SYMBOLS, script_of

LONGEST_PIECE = 16
#: Characters of the longest unit; what is longer is cut. In Thai a phrase between blanks has about 40.
LONGEST_UNIT = 128
#: Characters of the distinct units that are learned from, the most frequent first: up to 300 bytes each.
MAX_CHARACTERS = 6_000_000
SEEDS = 1_000_000  # pieces to begin with
ROUNDS = 2  # of expectation maximisation before each pruning
KEPT = 0.75  # of the pieces, in a pruning
SURPLUS = 1.1  # times the pieces wanted: so many are left for the last cut
LEAST_EXPECTED = 0.5  # occurrences, of a piece that stays
_UNITS_AT_ONCE = 1 << 14
_KEYS_OF_STEP = LONGEST_PIECE + 1

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Keys = npt.NDArray[np.uint16]

# -- units ------------------------------------------------------------------------------------------------

_DIGITS, _SYMBOLS, _INHERITED, _MARK = range(4)


class UnitSplitter:
    """Splits runs of non-blank characters into units. See the top of this file."""

    def __init__(self, normalizer: normalizers.Normalizer, *, split_digits: bool) -> None:
        self._normalizer = normalizer
        self._split_digits = split_digits
        self._classes = np.full(0x110000, -1, np.int16)
        self._classes[ord(MARK)] = _MARK
        self._numbers = {DIGITS: _DIGITS, SYMBOLS: _SYMBOLS, ANY_SCRIPT: _INHERITED}

    def split_column(self, runs: pa.Array) -> tuple[pa.Array, pa.Array]:
        """The units of a column of non-empty runs, in their order, and for each unit the index of its run."""
        texts = [self._mark_words(run) for run in runs.to_pylist()]
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        joined = "".join(texts)
        codes = np.frombuffer(joined.encode("utf-32-le"), np.uint32)
        starts = np.flatnonzero(self._begins_unit(codes))
        sizes = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)  # as UTF-8
        offsets = np.append(np.cumsum(sizes)[starts] - sizes[starts], sizes.sum())
        content = joined.encode()
        units = pa.LargeStringArray.from_buffers(len(starts), pa.py_buffer(offsets), pa.py_buffer(content))
        return units, pa.array(np.searchsorted(np.cumsum(lengths), starts, side="right"))

    def _mark_words(self, run: str) -> str:
        """The run, normalised, with the mark before each word: normalising may make blanks."""
        return "".join(f"{MARK}{word}" for word in self._normalizer.normalize_str(run).split())

    def _begins_unit(self, codes: npt.NDArray[np.uint32]) -> Mask:
        """(C,) True where a unit begins."""
        for code in np.unique(codes[self._classes[codes] < 0]).tolist():
            number = self._numbers.setdefault(script_of(chr(code)), len(self._numbers) + 1)
            self._classes[code] = number
        classes = self._classes[codes]
        own = np.where(classes == _INHERITED, 0, np.arange(len(codes)))
        classes = classes[np.maximum.accumulate(own)]
        begins: Mask = classes == _MARK
        changes = classes[1:] != classes[:-1]
        if self._split_digits:
            changes |= classes[1:] == _DIGITS
        begins[1:] |= changes & (classes[:-1] != _MARK)
        return begins


class Units(NamedTuple):
    """Distinct units, the longest first: `codes` (C,) are their characters' places in the alphabet, `lengths`
    and `counts` (U,) their lengths and occurrences.
    """

    codes: Ints
    lengths: Ints
    counts: Floats

    @classmethod
    def of(cls, words: Mapping[str, int], alphabet: Sequence[str]) -> "Units":
        """The most frequent units, cut where they have other characters and where they are too long."""
        occurrences = Counter[str]()
        kept = set(alphabet)
        for word, count in words.items():
            if not kept.issuperset(word):
                parts = "".join(character if character in kept else "\0" for character in word).split("\0")
            else:
                parts = [word]
            for part in parts:
                for start in range(0, len(part), LONGEST_UNIT):
                    occurrences[part[start : start + LONGEST_UNIT]] += count
        # of equal counts by hash: in alphabetical order, all would begin with the same letters
        ranked = sorted(occurrences, key=lambda unit: (-occurrences[unit], zlib.crc32(unit.encode()), unit))
        ends = np.cumsum([len(unit) for unit in ranked])
        ranked = ranked[: int(np.searchsorted(ends, MAX_CHARACTERS, side="right")) or 1]
        ranked.sort(key=lambda unit: (-len(unit), unit))
        numbers = np.zeros(0x110000, np.int32)
        numbers[[ord(character) for character in alphabet]] = np.arange(len(alphabet))
        characters = np.frombuffer("".join(ranked).encode("utf-32-le"), np.uint32)
        return cls(
            numbers[characters],
            np.array([len(unit) for unit in ranked], np.int32),
            np.array([occurrences[unit] for unit in ranked], np.float64),
        )


# -- the first pieces -------------------------------------------------------------------------------------


class _Substrings(NamedTuple):
    """The substrings of one length that occur often enough: G of them, at W places.

    `places` (W,) are where they begin, ascending, and `groups` (W,) which ones; `counts` (G,) their
    occurrences, `firsts` (G,) their first places.
    """

    places: Ints
    groups: Ints
    counts: Floats
    firsts: Ints


def _find_substrings(units: Units, least: int) -> Iterator[tuple[_Substrings, Mask]]:
    """Yields the frequent substrings of each length, and (G,) which of them aren't always part of the same
    longer one.

    A substring is its first part but one and its last part but one, both found before.
    """
    owners = np.repeat(np.arange(len(units.lengths), dtype=np.int32), units.lengths)
    ends = np.repeat(np.cumsum(units.lengths, dtype=np.int32), units.lengths)
    characters = int(units.codes.max()) + 1
    places = np.arange(len(units.codes), dtype=np.int32)
    firsts = np.zeros(characters, np.int32)
    firsts[units.codes[::-1]] = places[::-1]
    counts: Floats = np.bincount(units.codes, units.counts[owners], characters).astype(np.float64)
    found = _Substrings(places, units.codes, counts, firsts)
    group_at = np.full(len(units.codes) + 1, -1, np.int32)
    for length in range(2, LONGEST_PIECE + 2):
        group_at[:] = -1
        group_at[found.places] = found.groups
        places = found.places[found.places + length <= ends[found.places]]
        places = places[group_at[places + 1] >= 0]
        pairs = group_at[places].astype(np.int64) * len(found.counts) + group_at[places + 1]
        encoded = pa.array(pairs).dictionary_encode()
        groups = encoded.indices.to_numpy()
        pairs = encoded.dictionary.to_numpy()
        counts = np.bincount(groups, units.counts[owners[places]], len(pairs)).astype(np.float64)
        longer = np.zeros(len(found.counts))
        np.maximum.at(longer, pairs // len(found.counts), counts)
        np.maximum.at(longer, pairs % len(found.counts), counts)
        yield found, longer < found.counts
        if length > LONGEST_PIECE:
            return
        frequent = counts >= least
        numbers = np.where(frequent, np.cumsum(frequent) - 1, -1).astype(np.int32)
        places, groups = places[frequent[groups]], numbers[groups[frequent[groups]]]
        firsts = places[np.flatnonzero(np.diff(np.maximum.accumulate(groups), prepend=-1))]
        found = _Substrings(places, groups, counts[frequent], firsts)
        if not len(places):
            return


class FirstPieces(NamedTuple):
    """The first pieces, the alphabet before all others, and where they may stand in the units.

    `starts`, `lengths`, `scores` (P,): where each one is spelt, its length, and its occurrences times that.
    `places` and `pieces`: for each length, where pieces of that length may stand, ascending, and which (E,).
    """

    starts: Ints
    lengths: Ints
    scores: Floats
    places: list[Ints]
    pieces: list[Ints]


def find_seeds(units: Units, least: int) -> FirstPieces:
    """The substrings of at most 16 characters, of `least` occurrences, that make up most of the text."""
    levels, whole = map(list, zip(*_find_substrings(units, least), strict=True))
    alphabet = len(levels[0].counts)
    whole[0][:] = False  # the alphabet is in any case
    scores = np.concatenate(
        [(level.counts * length)[kept] for length, (level, kept) in enumerate(zip(levels, whole), start=1)]
    )
    lengths = np.repeat(np.arange(1, len(levels) + 1, dtype=np.int32), [kept.sum() for kept in whole])
    starts = np.concatenate([level.firsts[kept] for level, kept in zip(levels, whole)])
    chosen = np.sort(np.argsort(-scores, kind="stable")[:SEEDS])
    number = np.full(len(scores), -1, np.int32)
    number[chosen] = np.arange(alphabet, alphabet + len(chosen), dtype=np.int32)
    first_level = levels[0]
    places, pieces = [first_level.places], [first_level.groups]
    begin = 0
    for kept in whole[1:]:
        level = levels.pop(1)  # large ones are forgotten one by one
        numbers = np.full(len(level.counts), -1, np.int32)
        numbers[kept] = number[begin : begin + kept.sum()]
        begin += int(kept.sum())
        chosen_places = numbers[level.groups] >= 0
        places.append(level.places[chosen_places])
        pieces.append(numbers[level.groups[chosen_places]])
    return FirstPieces(
        np.concatenate([first_level.firsts, starts[chosen]]),
        np.concatenate([np.ones(alphabet, np.int32), lengths[chosen]]),
        np.concatenate([first_level.counts, scores[chosen]]),
        places,
        pieces,
    )


# -- all ways to spell the units --------------------------------------------------------------------------


class Lattice:
    """All ways to spell some units by pieces, as edges from one character's begin to another's end.

    The units are side by side, the longest first: step t of the algorithms takes all edges that end behind
    the t-th character of any unit.
    """

    def __init__(self, lengths: Ints, keys: Keys, units: Ints, pieces: Ints) -> None:
        """`lengths` (U,) of the units, descending; for each edge (E,) its key, its unit and its piece. A key
        is where the edge ends in its unit, times 17, plus its own length. Edges are sorted by their keys.
        """
        self.lengths = lengths
        self._keys, self._units, self._pieces = keys, units, pieces

    def keep(self, numbers: Ints, kept_units: Mask | None = None) -> None:
        """Forgets pieces, and units: `numbers` (P,) are the new ones of the pieces, -1 of those that go."""
        kept = numbers[self._pieces] >= 0
        units = self._units
        if kept_units is not None:
            kept &= kept_units[units]
            units = (np.cumsum(kept_units, dtype=np.int32) - 1)[units]
            self.lengths = self.lengths[kept_units]
        self._keys, self._units, self._pieces = self._keys[kept], units[kept], numbers[self._pieces[kept]]

    @property
    def _rows(self) -> npt.NDArray[np.int64]:
        """Where each step's row begins in a table of all characters' ends; step 0 is before them."""
        longest = int(self.lengths[0])
        at_least = np.cumsum(np.bincount(self.lengths, minlength=longest + 1)[::-1])[::-1]
        at_least[0] = len(self.lengths)
        return np.concatenate([[0], np.cumsum(at_least)])

    def _blocks(self) -> list[tuple[int, int, int, int]]:
        """The edges that end in the same step and have the same length: the first of them, the one behind
        the last, and the rows that they come from and lead to.
        """
        sizes = np.bincount(self._keys)
        ends, rows = np.cumsum(sizes), self._rows
        return [
            (
                int(ends[key] - sizes[key]),
                int(ends[key]),
                int(rows[key // _KEYS_OF_STEP - key % _KEYS_OF_STEP]),
                int(rows[key // _KEYS_OF_STEP]),
            )
            for key in np.flatnonzero(sizes).tolist()
        ]

    def _ends(self) -> npt.NDArray[np.int64]:
        return self._rows[self.lengths] + np.arange(len(self.lengths))

    def expect(self, probabilities: Floats, counts: Floats) -> Floats:
        """How often each piece is expected (P,) in units that occur `counts` (U,) times.

        The probabilities (P,) may be scaled by any factor for each character: it is in all ways alike.
        """
        values = probabilities[self._pieces]
        before = np.zeros(self._rows[-1])
        before[: len(counts)] = 1
        blocks = self._blocks()
        for first, last, come_from, lead_to in blocks:
            units = self._units[first:last]
            before[lead_to + units] += before[come_from + units] * values[first:last]
        ends = self._ends()
        totals = before[ends]
        behind = np.zeros(self._rows[-1])
        readable = (totals > 0) & np.isfinite(totals)
        behind[ends[readable]] = counts[readable] / totals[readable]
        for first, last, come_from, lead_to in reversed(blocks):
            units = self._units[first:last]
            sources = come_from + units
            flow = behind[lead_to + units] * values[first:last]
            behind[sources] += flow
            values[first:last] = flow * before[sources]
        return np.bincount(self._pieces, values, len(probabilities)).astype(np.float64)

    def best(self, probabilities: Floats) -> Floats:
        """The probability of the most likely way to spell each unit (U,)."""
        values = probabilities[self._pieces]
        best = np.zeros(self._rows[-1])
        best[: len(self.lengths)] = 1
        for first, last, come_from, lead_to in self._blocks():
            units = self._units[first:last]
            reached = lead_to + units
            best[reached] = np.maximum(best[reached], best[come_from + units] * values[first:last])
        return best[self._ends()]


def build_lattices(units: Units, seeds: FirstPieces) -> list[tuple[Lattice, Floats]]:
    """The lattices of the units, some thousand units each, with the units' counts."""
    begins = np.cumsum(units.lengths) - units.lengths
    lattices = []
    for first in range(0, len(units.lengths), _UNITS_AT_ONCE):
        lengths = units.lengths[first : first + _UNITS_AT_ONCE]
        begin, end = begins[first], begins[first] + lengths.sum()
        owners = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        within = (
            np.arange(end - begin, dtype=np.int32) - (begins[first : first + len(lengths)] - begin)[owners]
        )
        keys, owned, spelt = list[Keys](), list[Ints](), list[Ints]()
        for length, (places, pieces) in enumerate(zip(seeds.places, seeds.pieces, strict=True), start=1):
            part = slice(*np.searchsorted(places, [begin, end]))
            inside = places[part] - begin
            keys.append(((within[inside] + length) * _KEYS_OF_STEP + length).astype(np.uint16))
            owned.append(owners[inside])
            spelt.append(pieces[part])
        order = np.argsort(np.concatenate(keys), kind="stable")
        edges = (np.concatenate(keys)[order], np.concatenate(owned)[order], np.concatenate(spelt)[order])
        lattices.append((Lattice(lengths, *edges), units.counts[first : first + _UNITS_AT_ONCE]))
    return lattices


def build_alternatives(seeds: FirstPieces, characters: int) -> tuple[Lattice, Ints]:
    """The ways to spell each piece of several characters by others, and those pieces, in the lattice's order.

    A piece's inner pieces stand where the piece is spelt in the units.
    """
    longer = np.flatnonzero(seeds.lengths > 1)
    longer = longer[np.argsort(-seeds.lengths[longer], kind="stable")]
    starts, lengths = seeds.starts[longer], seeds.lengths[longer]
    piece_at = np.full(characters + LONGEST_PIECE, -1, np.int32)
    blocks = dict[int, tuple[Ints, Ints]]()
    for length, (places, pieces) in enumerate(zip(seeds.places, seeds.pieces, strict=True), start=1):
        piece_at[:] = -1
        piece_at[places] = pieces
        for shift in range(LONGEST_PIECE - length + 1):
            inner = np.flatnonzero(lengths >= shift + length + (shift == 0)).astype(np.int32)
            found = piece_at[starts[inner] + shift]
            blocks[(shift + length) * _KEYS_OF_STEP + length] = inner[found >= 0], found[found >= 0]
    ordered = sorted(blocks)
    keys = np.repeat(np.array(ordered, np.uint16), [len(blocks[key][0]) for key in ordered])
    inners, founds = (np.concatenate([blocks[key][part] for key in ordered]) for part in (0, 1))
    return Lattice(lengths, keys, inners, founds), longer.astype(np.int32)


# -- learning ---------------------------------------------------------------------------------------------


def learn_unigram(
    units: Units, alphabet: Sequence[str], size: int, least: int = 2, progress: Progress | None = None
) -> list[tuple[str, float]]:
    """At most `size` pieces, the alphabet among them, with their log-probabilities, the likeliest first.

    Others than the alphabet occur at least `least` times.
    """
    seeds = find_seeds(units, least)
    lattices = build_lattices(units, seeds)
    alternatives, owners = build_alternatives(seeds, len(units.codes))
    starts, lengths = seeds.starts, seeds.lengths
    scores = seeds.scores
    del seeds
    # Products of many probabilities would be too small for a float. Scaled so for each character, those of
    # texts are about 1, and it is in all ways to spell a text alike.
    frequencies = scores[: len(alphabet)] / scores[: len(alphabet)].sum()
    by_character = np.append(1 / np.sqrt(frequencies), 1.0)
    spelt = np.append(units.codes, np.full(LONGEST_PIECE, len(alphabet), np.int32))
    scale = np.ones(len(starts))
    for shift in range(LONGEST_PIECE):
        scale *= np.where(shift < lengths, by_character[spelt[starts + shift]], 1.0)
    probabilities = scores / scores.sum()

    def forget(kept: Mask) -> None:
        nonlocal starts, lengths, scale, owners
        numbers = np.where(kept, np.cumsum(kept) - 1, -1).astype(np.int32)
        for lattice, _ in lattices:
            lattice.keep(numbers)
        alternatives.keep(numbers, kept[owners])
        owners = numbers[owners[kept[owners]]]
        starts, lengths, scale = starts[kept], lengths[kept], scale[kept]

    while True:
        for _ in range(ROUNDS):
            expected = np.zeros(len(starts))
            for lattice, counts in lattices:
                expected += lattice.expect(probabilities * scale, counts)
            kept = expected >= LEAST_EXPECTED
            kept[: len(alphabet)] = True
            if not kept.all():
                forget(kept)
                expected = expected[kept]
            # exp(digamma(x)), the mean of a Dirichlet prior that prefers few pieces, to within a percent
            expected = np.maximum(expected, LEAST_EXPECTED)
            probabilities = expected - 0.5 + 1 / (24 * expected)
            probabilities /= probabilities.sum()
        if len(starts) <= SURPLUS * size:
            break
        others = alternatives.best(probabilities * scale)
        loss = np.full(len(starts), np.inf)
        loss[owners] = expected[owners] * np.log((probabilities * scale)[owners] / others)
        loss[: len(alphabet)] = np.inf
        most = max(int(SURPLUS * size), int(KEPT * len(starts)))
        kept = np.zeros(len(starts), np.bool_)
        kept[np.argsort(-loss, kind="stable")[:most]] = True
        forget(kept)
        probabilities = probabilities[kept]
        if progress is not None:
            progress(size, len(starts), "pieces")
    order = np.argsort(-probabilities, kind="stable")
    single = order < len(alphabet)
    others_kept = np.cumsum(~single) <= size - len(alphabet)
    chosen = order[single | others_kept]
    pieces = [
        ("".join(alphabet[code] for code in units.codes[start : start + length]), score)
        for start, length, score in zip(
            starts[chosen].tolist(),
            lengths[chosen].tolist(),
            np.round(np.log(probabilities[chosen]), 6).tolist(),
            strict=True,
        )
    ]
    return sorted(pieces, key=lambda piece: (-piece[1], piece[0]))
