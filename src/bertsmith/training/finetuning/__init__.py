"""Fine-tuning: labelled files → a run of each seed → the best model, measured beside its baselines."""
