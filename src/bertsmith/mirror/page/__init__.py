"""What a person sees of a mirror: the page at /bertsmith/ (page.py), and its state as JSON (state.py)."""
