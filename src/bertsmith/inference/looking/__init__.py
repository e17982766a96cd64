"""What a model makes of one input: what it rests on, where attention looks, what a word means there."""
