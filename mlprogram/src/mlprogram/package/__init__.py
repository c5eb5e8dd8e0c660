"""What a package says: its program, weight file and description, read and checked. No torch."""
