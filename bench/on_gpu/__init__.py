"""What bench/gpu.py is made of: made-up batches, both sides, checks, timings, a profile, the clock."""
