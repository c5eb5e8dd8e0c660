"""Write packages: a torch block is lowered to MIL once, and stamped for every layer."""
