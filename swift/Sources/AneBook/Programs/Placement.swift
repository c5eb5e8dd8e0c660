/// Opens what belongs together on the same processors: those that were asked for, or, once one is
/// refused there, all of it on the CPU.
///
/// Functions of a package share its states, of which nothing says that they may cross from one
/// processor to another. And each that asked again could take the minutes of the first one's search.
final class Placement<Model> {
    /// Whether the CPU alone is asked for from now on.
    private(set) var onCPU: Bool
    /// Whether states may exist: then what is open stays where it is.
    var begun = false
    private var places: [Place] = []

    /// Where a model is, which may change until the first call.
    final class Place {
        fileprivate(set) var model: Model
        fileprivate let open: (Bool) throws -> Model

        fileprivate init(_ model: Model, _ open: @escaping (Bool) throws -> Model) {
            (self.model, self.open) = (model, open)
        }
    }

    init(onCPU: Bool) { self.onCPU = onCPU }

    /// open: is told whether it is for the CPU alone. refused: is told what was said where all go to
    /// the CPU. Throws that where the CPU does not take them either.
    func open(_ open: @escaping (_ onCPU: Bool) throws -> Model, refused: (any Error) -> Void) throws -> Place {
        let place: Place
        do { place = Place(try open(onCPU), open) } catch where !onCPU {
            guard let model = try? open(true) else { throw error }
            if !begun { for other in places { other.model = try other.open(true) } }
            onCPU = true
            refused(error)
            place = Place(model, open)
        }
        places.append(place)
        return place
    }
}
