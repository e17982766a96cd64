"""What predictions are worth: scores, what they are compared with, how far to trust them. No model here."""
