"""The page at /: every model tried in a browser, with what its answer rests on."""
