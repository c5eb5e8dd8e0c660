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
                    Text("\(line.role): \(line.text)").textSelection(.enabled)
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

/// The conversation, and the session that answers it.
@MainActor @Observable
final class Chat {
    struct Line: Identifiable {
        let id = UUID()
        let role: String
        var text: String
    }

    private(set) var lines: [Line] = []
    private(set) var status = "Loading the model; the first time takes minutes."
    private(set) var answering = false
    private var session: Session?
    private var task: Task<Void, Never>?

    func load() async {
        do {
            guard let folder = Bundle.main.url(forResource: "Model", withExtension: nil) else {
                status = "The app has no folder Model among its resources."
                return
            }
            let session = try Session(ModelBundle(folder), predictor: CoreMLPredictor())
            try await session.prewarm()
            (self.session, status) = (session, "")
        } catch {
            status = "\(error)"
        }
    }

    func send(_ text: String) {
        guard let session, !answering else { return }
        lines.append(Line(role: "user", text: text))
        let messages = lines.map { Message(role: $0.role, content: $0.text) }
        lines.append(Line(role: "assistant", text: ""))
        answering = true
        let former = task, place = lines.count - 1
        let background = BackgroundTime { [weak self] in self?.stop() }
        task = Task {
            var options = Options()
            (options.reuseCache, options.maxTokens) = (true, 1024)
            await former?.value
            do {
                for try await event in session.stream(.messages(messages), options) {
                    switch event {
                    case .text(let piece): lines[place].text += piece
                    case .end(let answer): status = "\(answer.tokens.count) tokens"
                    }
                }
                if Task.isCancelled { status = "Stopped." }  // for its task, a stream only ends
            } catch {
                status = "\(error)"
            }
            answering = false
            background.end()
        }
    }

    func stop() { task?.cancel() }
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
