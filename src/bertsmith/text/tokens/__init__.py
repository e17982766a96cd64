"""Tokens: the tokenizer that reads text, and the vocabulary that it reads by.

In come the files of a tokenizer, WordPiece or byte-level, as others saved it, or a corpus to learn a
vocabulary from; out go ids with character offsets. Read tokenizer.py first.

Reading its files: tokenizer_files.py, and what they may hold: tokenizer_json.py, added_tokens.py,
wordpiece.py, byte_level.py, sequence_rules.py. Other kinds: value_tokenizers.py. Making a vocabulary:
vocabulary.py, and its report; changing it: extension.py and pruning.py. Much text at once: word_cache.py;
one long text: long_texts.py.
"""
