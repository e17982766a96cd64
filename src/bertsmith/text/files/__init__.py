"""Files of text and tables, read as streams: lines, documents and rows, each with the line it begins on.

What is read is a path, a folder, an address or standard input, compressed or not. Read tables.py first: it
has a class for each table format, and takes formats from other packages (docs/add-a-format-or-route.md).
rows.py is what most callers need: it reads the selected columns of any table. table_file.py opens a file as a
table. columns.py finds columns by name, by number or by a guess, and values.py turns cells into texts,
numbers and labels. Below them, sources.py finds files, streams.py decompresses and decodes one, and plain.py
splits plain text into documents.
"""
