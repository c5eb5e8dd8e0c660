// swift-tools-version: 6.0
import PackageDescription

let package = Package(
    name: "AneBook",
    platforms: [.macOS(.v15), .iOS(.v18)],
    products: [
        .library(name: "AneBook", targets: ["AneBook"]),
        .executable(name: "anebook", targets: ["anebook"]),
    ],
    targets: [
        .target(name: "AneBook"),
        .target(name: "AneBookServe", dependencies: ["AneBook"]),
        .executableTarget(name: "anebook", dependencies: ["AneBook", "AneBookServe"]),
        .testTarget(name: "AneBookTests", dependencies: ["AneBook", "AneBookServe"]),
    ],
    swiftLanguageModes: [.v6]
)
