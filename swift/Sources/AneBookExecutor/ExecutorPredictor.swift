#if os(macOS) || os(Linux)
import AneBook
import Foundation

/// Runs programs without Core ML: by the Python package `mlprogram`, in a process of its own.
///
/// For machines without Core ML, and to compare with it. What goes to the process and back is said
/// in `mlprogram/pipe.py`. Inputs and outputs are copied at every call.
public final class ExecutorPredictor: Predictor {
    private let command: [String]

    /// command: what starts the process, such as ["python3", "-m", "mlprogram.pipe"].
    public init(command: [String] = ["python3", "-m", "mlprogram.pipe"]) {
        self.command = command
    }

    public func open() throws -> any Programs { try Child(command) }

    /// The process, and one request at a time.
    private final class Child: Programs {
        private let process = Process(), requests: FileHandle, answers = Pipe(), command: String
        private var buffer = [UInt8](), read = 0
        private var isLost = false  // an answer did not come whole, so where the next begins is unknown

        init(_ command: [String]) throws {
            self.command = command.joined(separator: " ")
            process.executableURL = URL(fileURLWithPath: "/usr/bin/env")
            process.arguments = command
            // No pipe: only a write to a socket can be told to give an error where the other process
            // has ended, instead of a signal that ends this one.
            var ends: [Int32] = [-1, -1]
            guard socketpair(AF_UNIX, streams, 0, &ends) == 0 else {
                throw AneBookError.backendUnavailable("no socket for it: \(String(cString: strerror(errno)))")
            }
            requests = FileHandle(fileDescriptor: ends[0], closeOnDealloc: true)
            let theirs = FileHandle(fileDescriptor: ends[1], closeOnDealloc: true)
            #if canImport(Darwin)
            var on: Int32 = 1
            setsockopt(ends[0], SOL_SOCKET, SO_NOSIGPIPE, &on, socklen_t(MemoryLayout<Int32>.size))
            #endif
            // A process that inherits this end would keep the others' requests from ending.
            for end in ends { _ = fcntl(end, F_SETFD, FD_CLOEXEC) }
            (process.standardInput, process.standardOutput) = (theirs, answers)
            do { try process.run() } catch {
                throw AneBookError.backendUnavailable("\(self.command): \(error.reason)")
            }
            try? theirs.close()
        }

        deinit {
            try? requests.close()
            if process.isRunning { process.terminate() }
        }

        func load(_ function: FunctionReference, inputs: [String: Tensor], outputs: [String: Tensor]) throws
            -> any LoadedFunction {
            let reply = try ask(Request(load: function.package.path, function: function.name))
            return Function(self, reply.function ?? -1, inputs: inputs, outputs: outputs)
        }

        /// Sends a request with tensors behind it; the answer's arrays go into others.
        func ask(_ request: Request, sending: [Tensor] = [], into: [Tensor] = []) throws -> Reply {
            if isLost { throw ended() }
            isLost = true
            var request = request
            let bytes = sending.reduce(0) { $0 + $1.bytes.count }
            request.bytes = bytes == 0 ? nil : bytes
            let line = try JSONEncoder().encode(request) + [0x0A]
            try line.withUnsafeBytes(write)
            for tensor in sending { try write(UnsafeRawBufferPointer(tensor.bytes)) }
            guard let reply = try? decode(Reply.self, from: Data(try readLine())) else { throw ended() }
            let tensors = reply.error == nil ? into : []
            guard reply.bytes ?? 0 == tensors.reduce(0, { $0 + $1.bytes.count }) else { throw ended() }
            for tensor in tensors { try fill(tensor.bytes) }
            isLost = false
            if let error = reply.error { throw AneBookError.backendUnavailable(error) }
            return reply
        }

        private func write(_ bytes: UnsafeRawBufferPointer) throws {
            var left = bytes[...]
            while !left.isEmpty {
                let part = UnsafeRawBufferPointer(rebasing: left)
                let sent = send(requests.fileDescriptor, part.baseAddress, part.count, withoutSignal)
                if sent < 0 && errno == EINTR { continue }
                guard sent > 0 else { throw ended() }
                left = left.dropFirst(sent)
            }
        }

        private func readLine() throws -> ArraySlice<UInt8> {
            var searched = read
            while true {
                if let end = buffer[searched...].firstIndex(of: 0x0A) {
                    defer { read = end + 1 }
                    return buffer[read..<end]
                }
                searched = buffer.count
                var part = [UInt8](repeating: 0, count: 65_536)
                let count = try part.withUnsafeMutableBytes(readSome)
                buffer += part.prefix(count)
            }
        }

        private func fill(_ bytes: UnsafeMutableRawBufferPointer) throws {
            let known = min(buffer.count - read, bytes.count)
            bytes.copyBytes(from: buffer[read..<(read + known)])
            read += known
            if read == buffer.count { (buffer, read) = ([], 0) }
            var done = known
            while done < bytes.count {
                done += try readSome(UnsafeMutableRawBufferPointer(rebasing: bytes[done...]))
            }
        }

        private func readSome(_ bytes: UnsafeMutableRawBufferPointer) throws -> Int {
            while true {
                let count = Foundation.read(answers.fileHandleForReading.fileDescriptor, bytes.baseAddress, bytes.count)
                if count > 0 { return count }
                guard count < 0 && errno == EINTR else { throw ended() }
            }
        }

        private func ended() -> AneBookError {
            .backendUnavailable("the executor's process has ended, or says what it should not: "
                + "run `\(command)` to see why, and unload the session to start another")
        }
    }

    private struct Request: Encodable {
        var load: String?, function: String?
        var call: Int?, inputs: [String]?, outputs: [String]?
        var state: Int?, free: Int?
        var read: Int?, write: Int?, name: String?, of: Int?
        var bytes: Int?
    }

    private struct Reply: Decodable {
        let error: String?, function: Int?, state: Int?, bytes: Int?
    }

    private final class Function: LoadedFunction {
        private let child: Child, number: Int
        private let inputs: [(String, Tensor)], outputs: [(String, Tensor)]

        init(_ child: Child, _ number: Int, inputs: [String: Tensor], outputs: [String: Tensor]) {
            (self.child, self.number) = (child, number)
            (self.inputs, self.outputs) = (inputs.map { ($0, $1) }, outputs.map { ($0, $1) })
        }

        func makeState() throws -> any ProgramState {
            State(child, try child.ask(Request(state: number)).state ?? -1, of: number)
        }

        func predict(_ state: (any ProgramState)?) throws {
            let request = Request(call: number, inputs: inputs.map(\.0), outputs: outputs.map(\.0),
                state: (state as? State)?.number)
            _ = try child.ask(request, sending: inputs.map(\.1), into: outputs.map(\.1))
        }
    }

    private final class State: ProgramState {
        let child: Child, number: Int, function: Int

        init(_ child: Child, _ number: Int, of function: Int) {
            (self.child, self.number, self.function) = (child, number, function)
        }

        deinit { _ = try? child.ask(Request(free: number)) }

        func read(_ name: String, into tensor: Tensor) throws {
            _ = try child.ask(Request(read: number, name: name), into: [tensor])
        }

        func write(_ name: String, from tensor: Tensor) throws {
            _ = try child.ask(Request(write: number, name: name, of: function), sending: [tensor])
        }
    }
}

#if canImport(Darwin)
private let streams = SOCK_STREAM, withoutSignal: Int32 = 0  // there the socket says it, SO_NOSIGPIPE
#else
private let streams = Int32(SOCK_STREAM.rawValue), withoutSignal = Int32(MSG_NOSIGNAL)
#endif
#endif
