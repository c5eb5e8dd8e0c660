// What the example uses of SwiftUI. Each declaration follows its page on developer.apple.com; views
// are generic there where it matters to the example, and plain here where it does not.
@_exported import Foundation
@_exported import Observation

// documentation/swiftui/app
@MainActor @preconcurrency public protocol App {
    // documentation/swiftui/app/body-swift.associatedtype (not read)
    associatedtype Body: Scene
    // documentation/swiftui/app/body-swift.property (not read)
    @SceneBuilder var body: Body { get }
    // documentation/swiftui/app/init() (not read)
    init()
}

extension App {
    // documentation/swiftui/app/main()
    public static func main() { fatalError() }
}

// documentation/swiftui/scene (not read)
@MainActor @preconcurrency public protocol Scene {}

// documentation/swiftui/scenebuilder (not read)
@resultBuilder public struct SceneBuilder {
    // documentation/swiftui/scenebuilder/buildblock(_:) (not read)
    public static func buildBlock<Content: Scene>(_ content: Content) -> Content { content }
}

// documentation/swiftui/layout (not read)
public protocol Layout {}

// documentation/swiftui/windowgroup (not read)
public struct WindowGroup<Content: View>: Scene {
    // documentation/swiftui/windowgroup/init(content:) (not read)
    nonisolated public init(@ViewBuilder content: @escaping () -> Content) { fatalError() }
}

// documentation/swiftui/view (not read)
@MainActor @preconcurrency public protocol View {
    // documentation/swiftui/view/body-swift.associatedtype (not read)
    associatedtype Body: View
    // documentation/swiftui/view/body-swift.property (not read)
    @ViewBuilder var body: Body { get }
}

// documentation/swiftui/view (of what Apple makes, the bodies are `Never`)
extension Never: View {
    public typealias Body = Never
}

extension View where Body == Never {
    // documentation/swiftui/view/body-swift.property (not read)
    public var body: Never { return fatalError() }
}

// documentation/swiftui/viewbuilder (not read)
@resultBuilder public struct ViewBuilder {
    // documentation/swiftui/viewbuilder/buildblock(_:) (not read)
    public static func buildBlock<each Content: View>(_ content: repeat each Content) -> TupleView<(repeat each Content)> { fatalError() }
}

// documentation/swiftui/tupleview (not read)
public struct TupleView<T>: View { public typealias Body = Never }

// documentation/swiftui/state (not read)
@propertyWrapper public struct State<Value> {
    // documentation/swiftui/state/init(wrappedvalue:) (not read)
    public init(wrappedValue value: Value) { fatalError() }
    // documentation/swiftui/state/wrappedvalue (not read)
    public var wrappedValue: Value { get { fatalError() } nonmutating set {} }
    // documentation/swiftui/state/projectedvalue (not read)
    public var projectedValue: Binding<Value> { fatalError() }
}

// documentation/swiftui/binding (not read)
public struct Binding<Value> {}

// documentation/swiftui/vstack (not read)
public struct VStack<Content: View>: View {
    public typealias Body = Never
    // documentation/swiftui/vstack/init(alignment:spacing:content:) (not read)
    public init(@ViewBuilder content: () -> Content) { fatalError() }
}

// documentation/swiftui/hstack (not read)
public struct HStack<Content: View>: View {
    public typealias Body = Never
    // documentation/swiftui/hstack/init(alignment:spacing:content:) (not read)
    public init(@ViewBuilder content: () -> Content) { fatalError() }
}

// documentation/swiftui/scrollview (not read)
public struct ScrollView<Content: View>: View {
    public typealias Body = Never
    // documentation/swiftui/scrollview/init(_:showsindicators:content:) (not read)
    public init(@ViewBuilder content: () -> Content) { fatalError() }
}

// documentation/swiftui/foreach (not read)
public struct ForEach<Data: RandomAccessCollection, Content: View>: View where Data.Element: Identifiable {
    public typealias Body = Never
    // documentation/swiftui/foreach/init(_:content:) (not read)
    public init(_ data: Data, @ViewBuilder content: @escaping (Data.Element) -> Content) { fatalError() }
}

// documentation/swiftui/text (not read)
public struct Text: View {
    public typealias Body = Never
    // documentation/swiftui/text/init(_:) (not read)
    public init<S: StringProtocol>(_ content: S) { fatalError() }
}

// documentation/swiftui/textfield (not read)
public struct TextField: View {
    public typealias Body = Never
    // documentation/swiftui/textfield/init(_:text:) (not read)
    nonisolated public init<S: StringProtocol>(_ title: S, text: Binding<String>) { fatalError() }
}

// documentation/swiftui/button (not read)
public struct Button: View {
    public typealias Body = Never
    // documentation/swiftui/button/init(_:action:) (not read)
    nonisolated public init<S: StringProtocol>(_ title: S, action: @escaping @MainActor () -> Void) { fatalError() }
}

// documentation/swiftui/textselectability (not read)
public protocol TextSelectability {}

// documentation/swiftui/enabledtextselectability (not read)
public struct EnabledTextSelectability: TextSelectability {}

extension TextSelectability where Self == EnabledTextSelectability {
    // documentation/swiftui/textselectability/enabled (not read)
    public static var enabled: EnabledTextSelectability { fatalError() }
}

extension View {
    // documentation/swiftui/view/textselection(_:) (not read)
    nonisolated public func textSelection<S: TextSelectability>(_ selectability: S) -> some View { self }
    // documentation/swiftui/view/onsubmit(of:_:) (not read)
    nonisolated public func onSubmit(_ action: @escaping () -> Void) -> some View { self }
    // documentation/swiftui/view/padding(_:_:) (not read)
    nonisolated public func padding() -> some View { self }
    // documentation/swiftui/view/task(priority:_:) (not read)
    nonisolated public func task(_ action: @escaping @Sendable @MainActor () async -> Void) -> some View { self }
}
