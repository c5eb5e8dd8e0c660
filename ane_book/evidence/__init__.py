"""Evidence about packages and bundles: lint, placement, parity, quality, cost, Mac measurements."""
