"""The command line. In: the words that were typed. Out: what a function of the library made of them, printed.

A command parses, calls and prints; what it calls is imported only when it runs, so that `--help` answers at
once. Read main.py first: it has the table of the commands, each with the file that holds it. What several
share is in options.py (options), screen.py (tables, facts, progress), results.py (figures of a trained model)
and failures.py (what is said when something goes wrong, and the exit status).
"""
