"""An encoder taught by another loss before it has its head."""
