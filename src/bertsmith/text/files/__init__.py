"""Files: lines and rows of whatever holds text, read as streams, each knowing the line it stands on.

In come SOURCEs: paths, folders, addresses, standard input, packed or not. sources.py finds the files, and
streams.py unpacks and decodes one. plain.py makes documents of its lines. tables.py has every format of
tables, table_file.py opens a file as one of them, and rows.py is what most callers want: the columns they ask
for, of any table. columns.py tells which ones, values.py what a cell means; jsonl.py writes. Read tables.py
first: a format from outside the package comes in there (docs/add-a-table-format.md).
"""
