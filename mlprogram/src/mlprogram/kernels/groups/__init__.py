"""Groups of ops that one kernel does at once: the forms they are written in, and what runs them."""
