"""Fine-tuned models from folders and into them."""
