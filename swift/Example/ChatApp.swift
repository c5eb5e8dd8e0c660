import AneBook
import SwiftUI
#if canImport(UIKit)
import UIKit
#endif

/// A chat with the bundle that lies as the folder `Model` among the app's resources.
@main
struct ChatApp: App {
    @State private var chat = Chat()

    var body: some Scene {
        WindowGroup { ChatView(chat: chat) }
    }
}

struct ChatView: View {
    let chat: Chat
    @State private var draft = ""

    var body: some View {
        VStack {
            ScrollView {
                ForEach(chat.lines) { line in
                    Text("\(line.message.role): \(line.message.content)").textSelection(.enabled)
                }
            }
            Text(chat.status)
            HStack {
                TextField("Message", text: $draft).onSubmit(send)
                Button(chat.answering ? "Stop" : "Send", action: send)
            }
        }
        .padding()
        .task { await chat.load() }
    }

    private func send() {
        if chat.answering { return chat.stop() }
        guard !draft.isEmpty else { return }
        chat.send(draft)
        draft = ""
    }
}

/// The conversation, and what a view shows of it.
@MainActor @Observable
final class Chat {
    struct Line: Identifiable {
        let id: Int, message: Message
    }

    private var conversation: Conversation?
    private var trouble = ""

    var lines: [Line] { (conversation?.messages ?? []).enumerated().map { Line(id: $0, message: $1) } }
    var answering: Bool { conversation?.state == .answering }
    var status: String {
        switch conversation?.state {
        case .loading(let done, let all): "Loading the model, \(done) of \(all); the first time takes minutes."
        case .failed(let why): why
        case .idle, .answering, nil: trouble
        }
    }

    func load() async {
        do {
            guard let folder = Bundle.main.url(forResource: "Model", withExtension: nil) else {
                trouble = "The app has no folder Model among its resources."
                return
            }
            var options = Options()
            options.maxTokens = 1024
            let conversation = Conversation(try Session(ModelBundle(folder), predictor: CoreMLPredictor()), options)
            self.conversation = conversation
            try await conversation.load()
        } catch {
            trouble = "\(error)"
        }
    }

    func send(_ text: String) {
        guard let conversation else { return }
        let background = BackgroundTime { conversation.cancel() }
        Task {
            _ = try? await conversation.ask(text)  // its state says why not
            background.end()
        }
    }

    func stop() { conversation?.cancel() }
}

/// Time to go on answering after the app has left the screen: half a minute or so on iOS.
///
/// There the Neural Engine goes on, where work for the GPU would end the app.
@MainActor
final class BackgroundTime {
    #if canImport(UIKit)
    private var task = UIBackgroundTaskIdentifier.invalid

    init(_ expired: @escaping @MainActor @Sendable () -> Void) {
        task = UIApplication.shared.beginBackgroundTask(withName: "answer") { [weak self] in
            expired()
            self?.end()  // else the system ends the app
        }
    }

    func end() {
        if task != .invalid { UIApplication.shared.endBackgroundTask(task) }
        task = .invalid
    }
    #else
    init(_ expired: @escaping @MainActor @Sendable () -> Void) {}

    func end() {}
    #endif
}
