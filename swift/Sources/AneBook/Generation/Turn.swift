import Synchronization

/// Whose turn it is: one at a time, in the order of their coming.
package final class Turn: Sendable {
    private let line = Mutex(Line())

    private struct Line {
        var taken = false, last = 0
        var waiting: [(number: Int, continuation: CheckedContinuation<Void, any Error>)] = []
    }

    /// Waits for the turn, which `give` ends. Throws `CancellationError` where the task is cancelled
    /// before it comes.
    package func take(isolation: isolated (any Actor)? = #isolation) async throws {
        let number = line.withLock { $0.last += 1; return $0.last }
        try await withTaskCancellationHandler {
            try await withCheckedThrowingContinuation { continuation in
                let result: Result<Void, any Error>? = line.withLock { own in
                    if Task.isCancelled { return .failure(CancellationError()) }
                    if own.taken {
                        own.waiting.append((number, continuation))
                        return nil
                    }
                    own.taken = true
                    return .success(())
                }
                if let result { continuation.resume(with: result) }
            }
        } onCancel: {
            let left = line.withLock { own in
                own.waiting.firstIndex { $0.number == number }.map { own.waiting.remove(at: $0) }
            }
            left?.continuation.resume(throwing: CancellationError())
        }
    }

    package func give() {
        let next = line.withLock {
            let next = $0.waiting.isEmpty ? nil : $0.waiting.removeFirst()
            $0.taken = next != nil
            return next
        }
        next?.continuation.resume()
    }
}
