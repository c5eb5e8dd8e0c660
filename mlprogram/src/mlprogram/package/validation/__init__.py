"""What must hold for a program before anything of it is compiled or run."""
