"""Pages, pictures and figures as people read them; every report.html of the package is made with these.

In: numbers, texts and logs, as plain values. Out: one page of HTML that needs no other file (page.py, from
the templates *.html.jinja beside it), its tables (tables.py), its curves as SVG (charts.py), and its numbers
as text (formatting.py). What a page of one kind says is known where that kind of thing is done; only the page
of `bertsmith corpus decontaminate` is here. Begin with page.py.
"""
