// swift-tools-version: 6.0
import PackageDescription

let package = Package(
    name: "AneBook",
    platforms: [.macOS(.v15), .iOS(.v18), .visionOS(.v2)],
    products: [
        .library(name: "AneBook", targets: ["AneBook"]),
        .library(name: "AneBookCaches", targets: ["AneBookCaches"]),
        .library(name: "AneBookEncoders", targets: ["AneBookEncoders"]),
        .library(name: "AneBookExecutor", targets: ["AneBookExecutor"]),
        .executable(name: "anebook", targets: ["AneBookCommand"]),
    ],
    targets: [
        .target(name: "AneBook", path: "swift/Sources/AneBook"),
        .target(name: "AneBookCaches", dependencies: ["AneBook"], path: "swift/Sources/AneBookCaches"),
        .target(name: "AneBookEncoders", dependencies: ["AneBook"], path: "swift/Sources/AneBookEncoders"),
        // For machines without Core ML: it runs a process, so it is nothing for an app of iOS.
        .target(name: "AneBookExecutor", dependencies: ["AneBook"], path: "swift/Sources/AneBookExecutor"),
        .target(name: "AneBookServe", dependencies: ["AneBook"], path: "swift/Sources/AneBookServe"),
        // Not called as its product: a Mac tells AneBook and anebook apart neither as folders nor as files.
        .executableTarget(
            name: "AneBookCommand",
            dependencies: ["AneBook", "AneBookCaches", "AneBookEncoders", "AneBookExecutor", "AneBookServe"],
            path: "swift/Sources/AneBookCommand"),
        // What tests and measurements ask of the package; no product, so no app gets it.
        .executableTarget(
            name: "AneBookTestHost", dependencies: ["AneBook", "AneBookCaches", "AneBookEncoders", "AneBookExecutor"],
            path: "swift/Tests/AneBookTestHost"),
        .testTarget(
            name: "AneBookTests", dependencies: ["AneBook", "AneBookCaches", "AneBookExecutor", "AneBookServe"],
            path: "swift/Tests/AneBookTests"),
    ],
    swiftLanguageModes: [.v6]
)
