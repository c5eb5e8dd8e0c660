"""What makes it fast: which op or group of ops gets which kernel; the kernels' C is in `c/`."""
