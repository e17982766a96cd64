"""How small a fine-tuned model can be and still answer well enough."""
