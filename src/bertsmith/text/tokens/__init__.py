"""Tokenizers and their vocabularies: text → token ids with character offsets.

A WordPiece, byte-level or Unigram tokenizer is loaded from its files; a WordPiece or Unigram vocabulary is
learned from a corpus. Read tokenizer.py first.

tokenizer_files.py loads a tokenizer; the parts of its files are in tokenizer_json.py, added_tokens.py,
wordpiece.py, byte_level.py, unigram.py and sequence_rules.py. value_tokenizers.py has tokenizers for rows of
numbers. vocabulary.py learns a vocabulary, with unigram_training.py for Unigram, and vocabulary_report.py
measures it; extension.py and pruning.py change one. word_cache.py tokenizes large amounts of text,
long_texts.py single long texts.
"""
