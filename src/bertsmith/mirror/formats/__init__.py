"""One file a wire format: a request and its answer → what a mirror learns from."""
