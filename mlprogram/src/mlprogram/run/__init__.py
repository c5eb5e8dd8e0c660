"""Plan, compile and run functions and pipelines, and explain failures."""
