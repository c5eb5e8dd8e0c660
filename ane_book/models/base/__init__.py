"""What the architectures share: their interface, the decoder that most of them are, layers."""
