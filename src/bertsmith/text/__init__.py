"""Text: files → documents → sentences → a corpus; a vocabulary, and the tokenizer that reads by it.

files/ reads lines and rows of any file as streams, prose/ makes sentences of documents, corpus/ a folder of
them that accounts for each, and decontamination/ takes test rows out of it. tokens/ has the tokenizer, from
the files of others or of a vocabulary learnt here. labelled/ and retrieval/ read what is learnt from and
searched. Read corpus/building.py first, then tokens/tokenizer.py.
"""
