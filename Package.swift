// swift-tools-version: 6.0
import PackageDescription

let package = Package(
    name: "AneBook",
    platforms: [.macOS(.v15), .iOS(.v18), .visionOS(.v2)],
    products: [
        .library(name: "AneBook", targets: ["AneBook"]),
        .library(name: "AneBookLabels", targets: ["AneBookLabels"]),
        .executable(name: "anebook", targets: ["AneBookCommand"]),
    ],
    targets: [
        .target(name: "AneBook", path: "swift/Sources/AneBook"),
        .target(name: "AneBookLabels", dependencies: ["AneBook"], path: "swift/Sources/AneBookLabels"),
        .target(name: "AneBookServe", dependencies: ["AneBook"], path: "swift/Sources/AneBookServe"),
        // Not called as its product: a Mac tells AneBook and anebook apart neither as folders nor as files.
        .executableTarget(
            name: "AneBookCommand", dependencies: ["AneBook", "AneBookLabels", "AneBookServe"],
            path: "swift/Sources/AneBookCommand"),
        // What tests and measurements ask of the package; no product, so no app gets it.
        .executableTarget(
            name: "AneBookTestHost", dependencies: ["AneBook", "AneBookLabels"], path: "swift/Tests/AneBookTestHost"),
        .testTarget(
            name: "AneBookTests", dependencies: ["AneBook", "AneBookServe"], path: "swift/Tests/AneBookTests"),
    ],
    swiftLanguageModes: [.v6]
)
