"""Static analysis of a function: constants, which values share memory, how much memory it takes."""
