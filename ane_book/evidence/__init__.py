"""What is found out about a package: what is in it, what it computes, where two part, its loss."""
