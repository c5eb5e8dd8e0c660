"""From a function to something that runs: compiled to Python, called; failures told; pipelines."""
