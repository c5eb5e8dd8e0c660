import AneBook
import Dispatch
import Foundation
import Synchronization

/// What comes of a job, step by step.
enum Step: Sendable {
    /// All prompts can be answered; they have so many tokens together.
    case started(promptTokens: Int)
    case text(index: Int, String)
    /// An answer is whole; the cache had the first `cached` tokens of its prompt.
    case end(index: Int, Answer, cached: Int)
    case failed(Refusal)
    case done
}

/// A request in the queue or at work, and its steps, for the thread of its client.
final class Job: Sendable {
    private let state = Mutex<(steps: [Step], task: Task<Void, Never>?, left: Bool)>(([], nil, false))
    private let ready = DispatchSemaphore(value: 0)
    fileprivate let work: @Sendable (Job) async -> Void

    init(_ work: @escaping @Sendable (Job) async -> Void) { self.work = work }

    func put(_ step: Step) {
        state.withLock { $0.steps.append(step) }
        ready.signal()
    }

    /// The next step, or nil where there is none in time.
    func next(within seconds: Double) -> Step? {
        guard ready.wait(timeout: .now() + seconds) == .success else { return nil }
        return state.withLock { $0.steps.removeFirst() }
    }

    fileprivate func start(_ end: @escaping @Sendable () -> Void) {
        let task = Task {
            await work(self)
            end()
        }
        let left = state.withLock { state in
            state.task = task
            return state.left
        }
        if left { task.cancel() }
    }

    fileprivate func cancel() {
        let task = state.withLock { state in
            state.left = true
            return state.task
        }
        task?.cancel()
    }
}

/// The queue: one job at work, and a bounded number that wait.
final class Jobs: Sendable {
    private struct State {
        var waiting: [Job] = [], running: Job?, closed = false
        var began = Date(), seconds = 1.0  // of a job, lately
    }
    private let state = Mutex(State())
    private let most: Int

    init(waiting: Int) { most = waiting }

    var counts: (running: Int, waiting: Int) {
        state.withLock { ($0.running == nil ? 0 : 1, $0.waiting.count) }
    }

    /// Begins a job, or has it wait. Throws a refusal.
    func submit(_ job: Job) throws {
        let begins = try state.withLock { state in
            if state.closed { throw stopping }
            if state.running == nil {
                (state.running, state.began) = (job, Date())
                return true
            }
            guard state.waiting.count < most else {
                let retry = min(60, max(1, Int((state.seconds * Double(most)).rounded())))
                throw Refusal(429, "\(most) requests are waiting, as many as may", code: "queue_full",
                    headers: ["retry-after": String(retry)])
            }
            state.waiting.append(job)
            return false
        }
        if begins { job.start { self.end(job) } }
    }

    /// Ends a job whose client wants nothing more of it; the engine is free after its present program.
    func leave(_ job: Job) {
        state.withLock { $0.waiting.removeAll { $0 === job } }
        job.cancel()
    }

    /// Refuses new jobs and those that wait; the one that runs goes on.
    func close() {
        let waiting = state.withLock { state in
            defer { (state.waiting, state.closed) = ([], true) }
            return state.waiting
        }
        for job in waiting { job.put(.failed(stopping)) }
    }

    private func end(_ job: Job) {
        let next = state.withLock { state -> Job? in
            state.seconds += 0.2 * (-state.began.timeIntervalSinceNow - state.seconds)
            state.running = state.waiting.isEmpty ? nil : state.waiting.removeFirst()
            state.began = Date()
            return state.running
        }
        if let next { next.start { self.end(next) } }
    }

    private var stopping: Refusal {
        Refusal(503, "the server is being stopped", code: "stopping", headers: ["retry-after": "5"])
    }
}
