"""Text: read → documents → sentences → corpus with a manifest; WordPiece vocabulary; tokenizer."""
