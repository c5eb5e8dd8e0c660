// swift-tools-version: 6.0
import PackageDescription

let package = Package(
    name: "AneBook",
    platforms: [.macOS(.v15), .iOS(.v18), .visionOS(.v2)],
    products: [
        .library(name: "AneBook", targets: ["AneBook"]),
        .executable(name: "anebook", targets: ["AneBookCommand"]),
    ],
    targets: [
        .target(name: "AneBook", path: "swift/Sources/AneBook"),
        .target(name: "AneBookServe", dependencies: ["AneBook"], path: "swift/Sources/AneBookServe"),
        // Not called as its product: a Mac tells AneBook and anebook apart neither as folders nor as files.
        .executableTarget(
            name: "AneBookCommand", dependencies: ["AneBook", "AneBookServe"], path: "swift/Sources/AneBookCommand"),
        .testTarget(
            name: "AneBookTests", dependencies: ["AneBook", "AneBookServe"], path: "swift/Tests/AneBookTests"),
    ],
    swiftLanguageModes: [.v6]
)
