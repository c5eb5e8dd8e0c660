// What the example uses of UIKit. Each declaration follows its page on developer.apple.com.

// documentation/uikit/uiapplication (not read)
@MainActor open class UIApplication {
    // documentation/uikit/uiapplication/shared (not read)
    public class var shared: UIApplication { fatalError() }
    // documentation/uikit/uiapplication/beginbackgroundtask(withname:expirationhandler:) (not read)
    nonisolated public func beginBackgroundTask(withName taskName: String?, expirationHandler handler: (@MainActor @Sendable () -> Void)? = nil) -> UIBackgroundTaskIdentifier { fatalError() }
    // documentation/uikit/uiapplication/endbackgroundtask(_:)
    nonisolated public func endBackgroundTask(_ identifier: UIBackgroundTaskIdentifier) { fatalError() }
}

// documentation/uikit/uibackgroundtaskidentifier (not read)
public struct UIBackgroundTaskIdentifier: Hashable, Sendable {
    // documentation/uikit/uibackgroundtaskidentifier/invalid (not read)
    public static let invalid = UIBackgroundTaskIdentifier()
}
