"""Assets of Core AI beside the packages of a bundle."""

from ane_book.bundle import Bundle
from mlprogram.coreai import save_asset
from mlprogram.files import regular_files
from mlprogram.package.asset import check_asset, check_origin


def add_assets(bundle: Bundle) -> None:
    """Write an asset beside each package of a bundle that has none, App.mlpackage and App.aimodel,
    and put their files into the manifest.

    Raises what `save_asset` does, and InvalidPackage for an asset there that is of another package.
    """
    files: list[str] = []
    for part in bundle.manifest.packages:
        package = bundle.path / part.package
        asset = package.with_suffix(".aimodel")
        if asset.exists():
            check_origin(asset, check_asset(asset), package, "fp16")
        else:
            save_asset(package, asset)
        files += [f"{asset.name}/{name}" for name in regular_files(asset)]
    bundle.add_files(files)
