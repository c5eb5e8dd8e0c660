import AneBook
import Foundation
import Synchronization

/// Serves a bundle: over HTTP on this machine, or lines of standard input.
public struct Server: Sendable {
    private let service: Service
    private let open = Count(), busy = Count()
    private static let connections = 128

    public init(_ session: Session) throws { service = try Service(session) }

    /// Answers each line of standard input that is not blank with one on standard output.
    public func answerLines() async {
        while let line = readLine() {
            guard line.contains(where: { !$0.isWhitespace }) else { continue }
            let answer = await service.answer(line: line)
            FileHandle.standardOutput.write(Data("\(answer)\n".utf8))
        }
    }

    /// Serves until SIGTERM or Ctrl-C, then refuses what waits and finishes what runs; a second signal
    /// ends at once. Returns whether all requests that ran were finished.
    ///
    /// port: on 127.0.0.1; 0: one that is free. socket: the path of a UNIX socket that only its owner
    /// may open. Throws `invalidInput` where one cannot be used.
    public func run(port: UInt16?, socket path: String?) async throws -> Bool {
        signal(SIGPIPE, SIG_IGN)
        guard stops.read >= 0 else { throw AneBookError.backendUnavailable("no pipe for signals: close some files") }
        var listening: [Int32] = [], places: [String] = []
        if let port {
            let (socket, port) = try listen(port: port)
            listening.append(socket)
            places.append("http://127.0.0.1:\(port)/v1")
        }
        if let path {
            listening.append(try listen(path: path))
            places.append(path)
        }
        do { try await service.load() } catch {  // what cannot be opened fails before the first request
            if let path { unlink(path) }
            throw error
        }
        // Not before: a signal ends a load, which may take minutes, at once.
        for number in [SIGTERM, SIGINT] { signal(number) { _ in _ = Foundation.write(stops.write, "!", 1) } }
        log("serving \(service.name) at \(places.joined(separator: " and "))")
        let sockets = listening
        return await withCheckedContinuation { end in
            Thread.detachNewThread {
                accept(on: sockets)
                var signal: UInt8 = 0
                read(stops.read, &signal, 1)
                sockets.forEach { close($0) }
                if let path { unlink(path) }
                service.jobs.close()
                var finished = true
                while finished && busy.value > 0 { finished = arrives(in: [stops.read], within: 20).isEmpty }
                end.resume(returning: finished)
            }
        }
    }

    /// Takes connections, each on a thread of its own, until a signal.
    private func accept(on sockets: [Int32]) {
        while case let ready = arrives(in: sockets + [stops.read], within: -1), !ready.contains(stops.read) {
            for socket in ready {
                let client = Foundation.accept(socket, nil, nil)
                guard client >= 0 else {
                    // Without a descriptor for it, a connection stays ready to be accepted: wait for
                    // one that closes, or a signal.
                    if [EMFILE, ENFILE].contains(errno) { _ = arrives(in: [stops.read], within: 50) }
                    continue
                }
                var on: Int32 = 1
                setsockopt(client, Int32(IPPROTO_TCP), TCP_NODELAY, &on, socklen_t(MemoryLayout<Int32>.size))
                guard open.value < Self.connections else {
                    let refusal = Refusal(503, "\(Self.connections) connections are open, as many as may")
                    try? Connection(client).answer(503, refusal.body.written, to: nil, last: true)
                    continue
                }
                open.add(1)
                Thread.detachNewThread {
                    serve(Connection(client))
                    open.add(-1)
                }
            }
        }
    }

    /// Answers the requests of a connection, one after the other.
    private func serve(_ connection: Connection) {
        while true {
            var request: Request?
            var whole = false, working = false
            defer { if working { busy.add(-1) } }
            do {
                guard let head = try connection.head() else { return }
                request = head
                (working, _) = (true, busy.add(1))
                try service.check(head)
                request?.body = try connection.body(of: head)
                whole = true
                guard let request else { return }
                try service.answer(request, on: connection, last: !request.staysOpen)
                if !request.staysOpen { return }
            } catch let refusal as Refusal {
                let last = !whole || request?.staysOpen != true
                let done: Void? = try? connection.answer(
                    refusal.status, refusal.body.written, to: request, headers: refusal.headers, last: last)
                if last && done != nil { connection.linger() }
                if last || done == nil { return }
            } catch { return }
        }
    }
}

/// A number that threads share.
private final class Count: Sendable {
    private let number = Mutex(0)
    var value: Int { number.withLock { $0 } }
    func add(_ change: Int) { number.withLock { $0 += change } }
}

/// A pipe into which signals write.
private let stops: (read: Int32, write: Int32) = {
    var ends: [Int32] = [0, 0]
    return pipe(&ends) == 0 ? (ends[0], ends[1]) : (-1, -1)
}()

/// Which descriptors have something to read, waiting so many milliseconds for the first; -1: for ever.
private func arrives(in descriptors: [Int32], within milliseconds: Int32) -> [Int32] {
    var all = descriptors.map { pollfd(fd: $0, events: Int16(POLLIN), revents: 0) }
    poll(&all, nfds_t(all.count), milliseconds)
    return all.filter { $0.revents != 0 }.map(\.fd)
}

private func listen(port: UInt16) throws -> (socket: Int32, port: UInt16) {
    var address = sockaddr_in()
    (address.sin_family, address.sin_port) = (sa_family_t(AF_INET), port.bigEndian)
    address.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
    let listening = try listen(AF_INET, &address, "127.0.0.1:\(port)", "--port takes another")
    var length = socklen_t(MemoryLayout<sockaddr_in>.size)
    withUnsafeMutableBytes(of: &address) {
        _ = getsockname(listening, $0.baseAddress!.assumingMemoryBound(to: sockaddr.self), &length)
    }
    return (listening, UInt16(bigEndian: address.sin_port))
}

/// Listens on a path, in place of the socket of a server that is gone.
private func listen(path: String) throws -> Int32 {
    var address = sockaddr_un()
    address.sun_family = sa_family_t(AF_UNIX)
    let room = MemoryLayout.size(ofValue: address.sun_path)
    guard path.utf8.count < room else {
        throw AneBookError.invalidInput("\(path): a socket's path has at most \(room - 1) bytes")
    }
    withUnsafeMutableBytes(of: &address.sun_path) { $0.copyBytes(from: path.utf8) }
    let kind = try? FileManager.default.attributesOfItem(atPath: path)[.type] as? FileAttributeType
    if let kind, kind != .typeSocket {
        throw AneBookError.invalidInput("\(path) exists and is no socket; give another path (--socket)")
    }
    if kind != nil {
        let probe = socket(AF_UNIX, streams, 0)
        defer { close(probe) }
        if named(&address, { connect(probe, $0, $1) }) == 0 {
            throw AneBookError.invalidInput("\(path): another server listens there; give another path (--socket)")
        }
        unlink(path)
    }
    return try listen(AF_UNIX, &address, path, "--socket takes another", ownersAlone: path)
}

/// ownersAlone: the path of a socket that only its owner may open.
private func listen<Address>(_ family: Int32, _ address: inout Address, _ place: String, _ hint: String,
    ownersAlone path: String? = nil) throws -> Int32 {
    let listening = socket(family, streams, 0)
    var on: Int32 = 1
    setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, socklen_t(MemoryLayout<Int32>.size))
    // Before it listens, nobody can connect, whatever the mask of this process let others do.
    guard named(&address, { bind(listening, $0, $1) }) == 0, path.map({ chmod($0, 0o600) }) ?? 0 == 0,
        Foundation.listen(listening, 1024) == 0 else {
        let why = String(cString: strerror(errno))
        close(listening)
        throw AneBookError.invalidInput("\(place) cannot be listened on: \(why); \(hint)")
    }
    _ = fcntl(listening, F_SETFL, O_NONBLOCK)  // a client may be gone before it is accepted
    return listening
}

private func named<Address>(_ address: inout Address, _ call: (UnsafePointer<sockaddr>, socklen_t) -> Int32) -> Int32 {
    withUnsafeBytes(of: &address) {
        call($0.baseAddress!.assumingMemoryBound(to: sockaddr.self), socklen_t($0.count))
    }
}

#if canImport(Darwin)
private let streams = SOCK_STREAM
#else
private let streams = Int32(SOCK_STREAM.rawValue)
#endif
