"""Pages, pictures and numbers for readers; every report.html of the package is made with these.

In: numbers, texts and logs, as plain values. Out: a self-contained HTML page (page.py, from the templates
*.html.jinja beside it), its tables (tables.py), its curves as SVG (charts.py), and its numbers as text
(formatting.py). The content of a page is in the package whose results it shows; only the page of `bertsmith
corpus decontaminate` is here. Read page.py first.
"""
