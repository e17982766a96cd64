"""Token stores of sequences that are no text: integers, symbols, series, images and rows of tables.

Files of rows become a token store with its tokenizer and a codec, by which later rows, such as labelled ones,
are encoded in the same symbols. Read building.py first.
"""
