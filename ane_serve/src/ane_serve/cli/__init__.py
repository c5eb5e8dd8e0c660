"""The commands `serve` and `bench` of `ane-book`."""
