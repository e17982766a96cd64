"""What a served model can be asked for: request → sequences → answer."""
