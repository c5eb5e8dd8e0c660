// Names of Apple's that an app uses in files that import AneBook; one of ours that is the same is
// "ambiguous for type lookup". `Stubs/check` type-checks this.
import AneBook
import SwiftUI
#if canImport(FoundationModels)
import FoundationModels
#endif

@MainActor
final class Loader {
    var bundle: Bundle?
    let url = Bundle.main.url(forResource: "Model", withExtension: nil)

    func load(from bundle: Bundle = .main) { self.bundle = bundle }

    func arrange(_ layout: some Layout) {}

    #if os(macOS) || os(Linux)
    func reach(_ host: Host) {}
    #endif

    #if canImport(FoundationModels)
    @available(macOS 26, iOS 26, visionOS 26, *)
    func ask(_ prompt: Prompt) {}
    #endif
}
