"""Both numbers of a fault, on a few values."""
