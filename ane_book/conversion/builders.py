"""Which builder makes the bundles of which task."""

from ane_book.conversion.build import BundleBuilder
from ane_book.conversion.encoder import EncoderBuilder, TaggerBuilder

__all__ = ["BUILDERS"]

BUILDERS: dict[str, type[BundleBuilder]] = {
    "text-generation": BundleBuilder,
    "embedding": EncoderBuilder,
    "token-classification": TaggerBuilder,
}
