"""Read and check packages: program, weight file, description. No torch is needed."""
