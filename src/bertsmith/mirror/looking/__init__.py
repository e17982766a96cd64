"""What there is to see of a mirror: one state, for the page and for the command line."""
