"""Pages, pictures and figures as people read them."""
