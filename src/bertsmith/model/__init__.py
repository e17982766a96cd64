"""Model: embeddings → encoder → hidden states → pooling; weights in and out."""
