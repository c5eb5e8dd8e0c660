"""What is known of a function before it runs: constants, who shares memory, how much it takes."""
