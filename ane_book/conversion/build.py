"""`BundleBuilder`: write a bundle step by step into a folder beside its place, then rename it.

Every file and package is whole or not there, so a conversion that was killed goes on after the last
whole one; a package, which may have all layers of a model, begins anew. Weights are read one layer
at a time, and the head's one part of the vocabulary at a time; the golden numbers
(`ane_book.conversion.golden`) come from the same pass.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from functools import cached_property, partial
from importlib.metadata import version
import json
from pathlib import Path
import platform
import shutil
from typing import Any

from ane_book.bundle import Bundle, seal
from ane_book.bundle.evidence import unmeasured, write_evidence
from ane_book.bundle.manifest import Manifest
from ane_book.bundle.parts import Embedding, Source, Tokenizer
from ane_book.conversion.ahead import ahead
from ane_book.conversion.encoding import Encoding, StoredEncoding, rounded
from ane_book.conversion.golden import GoldenPass
from ane_book.conversion.packages import adapters_of, layers_of, part_of, tags_of, vectors_of
from ane_book.conversion.plan import Program, plan
from ane_book.conversion.quantize.allotment import Allotment
from ane_book.conversion.quantize.schemes import find_scheme
from ane_book.conversion.target import beside, exchange
from ane_book.conversion.target.journal import Journal
from ane_book.conversion.write.decoder import lower_blocks, write_shard
from ane_book.conversion.write.experts import Pieces, write_expert
from ane_book.conversion.write.head import write_head, write_pooled
from ane_book.errors import InvalidWeights, OutOfSpace
from ane_book.models import DecoderConfig, find
from ane_book.models.base import decoder
from ane_book.models.base.architecture import TensorSpec
from ane_book.options import Recipe
from ane_book.weights import TokenizerFiles, WeightSource
from mlprogram.files import is_full, regular_files
import numpy as np
import torch

KEEPS = "keeps the files and packages that are finished"
ROWS = 2048  # tokens whose inputs of all layers are computed at a time

Progress = Callable[[str, int, int], None]  # description, steps done, steps in all


def save_rows(path: Path, shape: tuple[int, ...], parts: Iterable[np.ndarray]) -> None:
    """Write an array of fp16 in numpy's format, some rows at a time."""
    header = {"descr": "<f2", "fortran_order": False, "shape": shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for rows in parts:
            file.write(np.ascontiguousarray(rows).data)


class BundleBuilder:
    """Builds one bundle in the folder `partial`, which then takes the place of `target`."""

    config: Any  # an instance of its architecture's Config

    def __init__(
        self,
        name: str,
        source: WeightSource,
        config: DecoderConfig,
        recipe: Recipe,
        progress: Progress = lambda description, done, total: None,
    ):
        self.name, self.source, self.recipe = name, source, recipe
        self.report = progress
        self.plan = plan(config, recipe)
        self.config = self.plan.config
        kind = StoredEncoding if recipe.is_stored else Encoding
        if recipe.is_calibrated:
            kind = Allotment
        self.encoding = kind(source, self.plan)
        self.read = self.encoding.read  # a tensor in float32, with the values of fp16
        self.steps = self.config.num_layers + 3 + self.encoding.steps  # embedding, lowering, head
        self.done = 0

    @property
    def _per_layer(self) -> Embedding | None:
        """The manifest's `per_layer`; None unless layers have an input of their own."""
        if (table := self._outer.get("per_layer.table")) is None:
            return None
        V, columns = table.shape
        return Embedding(file="per_layer.npy", shape=(V, columns))

    @cached_property
    def golden(self) -> GoldenPass:
        return GoldenPass(self.config, self.recipe, self.partial, self.read)

    def work_in(self, folder: Path) -> None:
        """Set the folder of the unfinished bundle."""
        self.partial = self.encoding.folder = folder

    def build(self, target: Path, key: str) -> Bundle:
        """Build the bundle, or finish one that was interrupted; `key` names source and recipe.

        Raises OutOfSpace before anything is done, or when the disk fills up in the middle.
        """
        self.work_in(beside(target, "partial"))
        try:
            with Journal(self.partial, key) as self.journal:
                self._build()
            exchange(self.partial, target)
        except (KeyboardInterrupt, SystemExit) as end:
            if (self.partial / "journal.json").exists():
                end.add_note(f"interrupted: {self.partial} {KEEPS}; repeat the command to go on, "
                             "or delete that folder")  # fmt: skip
            raise
        except InvalidWeights as error:
            raise InvalidWeights(f"{error}; delete what was finished, {self.partial}") from None
        except (OSError, RuntimeError) as error:
            if not is_full(error):
                raise
            raise OutOfSpace(
                f"{self.partial}: the disk took no more after step {self.done} of {self.steps}; "
                f"make room and convert again, which {KEEPS}, or delete that folder"
            ) from None
        return Bundle.open(target)

    def _build(self) -> None:
        self._check_space()
        self._whole("tokenizer.json", lambda path: path.write_text(self.tokenizer.json, "utf-8"))
        for name, write in self.tables.items():
            self._whole(name, write)
        self._advance("embedding")
        self._prepare()
        self._write_layers()
        self._write_head()
        self.encoding.finish()
        self._advance("head")
        for pattern in ("hidden_*.npz", "experts_*.npz"):
            for leftover in self.partial.glob(pattern):
                leftover.unlink()
        self._whole("manifest.json", self._write_manifest)
        written = json.loads((self.partial / "manifest.json").read_bytes())["seal"]
        write_evidence(self.partial, unmeasured(written))
        self.journal.remove()

    def _prepare(self) -> None:
        """Write the file that the encoding needs before the first program, if any."""
        name = self.encoding.file
        if not name:
            return
        if (self.partial / name).exists():
            self._advance(name, self.encoding.steps)
        else:
            self._whole(name, lambda path: self.encoding.prepare(path, self._advance))

    def _check_space(self) -> None:
        """Raise OutOfSpace when what is still to be written cannot fit."""
        written = sum(regular_files(self.partial).values())
        tables = self.plan.embedding_bytes + self.plan.per_layer_bytes
        needed = self.plan.weight_bytes + tables - written
        free = shutil.disk_usage(self.partial).free
        if needed > free:  # one rounded up, the other down, so that the two never read the same
            raise OutOfSpace(
                f"{self.partial.parent}: the conversion needs {-(-needed // 100_000) / 10:,.1f} MB "
                f"more, and {free // 100_000 / 10:,.1f} MB are free; make room, or name another "
                "folder"
            )

    def _advance(self, description: str, steps: int = 1) -> None:
        self.done += steps
        self.report(description, self.done, self.steps)

    def _whole(self, name: str, write: Callable[[Path], object]) -> None:
        """Write a file or folder under another name and rename it, unless it exists."""
        final = self.partial / name
        if final.exists():
            return
        unfinished = final.with_name(f"unfinished_{name}")
        if unfinished.is_dir():
            shutil.rmtree(unfinished)
        write(unfinished)
        unfinished.rename(final)
        self.journal.note()

    # --- weights ------------------------------------------------------------------------------

    @property
    def _outer(self) -> dict[str, TensorSpec]:
        return find(self.config.architecture).outer(self.config)

    @property
    def tables(self) -> dict[str, Callable[[Path], None]]:
        """What writes each of the host's tables that the model has, in order, by its file."""
        writers = {
            "embedding": ("embedding.npy", self._write_embedding),
            "per_layer.table": ("per_layer.npy", self._write_per_layer),
            "positions": ("positions.npy", self._write_positions),
        }
        return dict(own for name, own in writers.items() if name in self._outer)

    def _write_embedding(self, path: Path) -> None:
        name = self._outer["embedding"].name
        save_rows(path, self.source.shape(name), self.encoding.rows(name))

    def _write_per_layer(self, path: Path) -> None:
        """Write what every token gives to the layers, rows (V, L * P)."""
        own, table = self.plan.signatures[0].own, self._outer["per_layer.table"]
        assert own is not None, "what a model with such a table has"
        embedding = np.load(self.partial / "embedding.npy", mmap_mode="r")
        found = own.rows(self.read, embedding, self.source.rows(table.name, ROWS))
        where = self.source.where(table.name)
        save_rows(path, table.shape, (rounded(where, rows) for rows in found))

    def _write_positions(self, path: Path) -> None:
        """Write the position embeddings, rows (P, C), with that of token type 0 added."""
        names = [self._outer[part].name for part in ("positions", "types")]
        positions, types = (self.source.tensor(name) for name in names)
        first = self.config.skipped
        rows = positions[first : first + self.recipe.context] + types[0]
        save_rows(path, rows.shape, [rounded(self.source.where(names[0]), rows)])

    @cached_property
    def _vocabulary(self) -> np.ndarray:
        """The head's weight (V, C), fp16; a tied one is the embedding as written, memory-mapped."""
        if "head" not in self._outer:
            return np.load(self.partial / "embedding.npy", mmap_mode="c")  # torch warns of "r"
        name, at = self._outer["head"].name, 0
        whole = np.empty(self.source.shape(name), np.float16)
        for rows in self.encoding.rows(name):
            whole[at : at + len(rows)] = rows
            at += len(rows)
        return whole

    # --- packages -----------------------------------------------------------------------------

    @cached_property
    def pieces(self) -> dict[str, Pieces]:
        """The lowered modules of each function of packages that have layers."""
        calls = self.plan.functions(self.plan.shards[0])
        return lower_blocks(self.config, self.recipe, calls)

    def write(self, path: Path, program: Program, weights: Iterable[dict]) -> None:
        """Write a package; weights: the state dict of each of its layers, or of a `Head` with each
        of its parts of the vocabulary."""
        config, recipe, layers = self.config, self.recipe, program.layers
        if program.parts:
            encoded = map(self.encoding.head, program.parts, weights)
            write_head(path, config, recipe, self.plan.vocabulary(program), encoded)
        elif program in self.plan.pooled:
            state = decoder.end_weights(config, "pooled", self.read)
            write_pooled(path, config, self.plan.functions(program), state)
        elif program.trunk is not None:
            self._write_trunk(path, layers, weights)
        elif program.expert is None:
            ends = decoder.ends_of(config, layers, self.read)
            encoded = map(self.encoding.layer, layers, weights)
            write_shard(path, config, recipe, self.pieces, layers, encoded, ends)
        else:
            kind, scheme = self.plan.signatures.names[layers.start], find_scheme(recipe.quant)
            names, (state,) = self.plan.functions(program), weights
            parted = {name: self.pieces[name].parted[kind] for name in names}
            write_expert(path, scheme, parted, layers.start, program.expert, state)

    def _write_trunk(self, path: Path, layers: range, weights: Iterable[dict]) -> None:
        """Write the end of a layer behind its experts, and the next up to its own, if any."""
        parted, n, behind = next(iter(self.pieces.values())).parted, layers.start, None
        kinds = self.plan.signatures.names
        if n:
            names = {*parted[kinds[n - 1]].behind.parameters.values()}
            behind = decoder.block_weights(self.config, n - 1, self.read, names)
        names = {*parted[kinds[n]].before.parameters.values()} if layers else set()
        states = [{name: own[name] for name in own if name in names} for own in weights]
        ends = decoder.ends_of(self.config, range(n, n), self.read)
        write_shard(path, self.config, self.recipe, self.pieces, layers, states, ends, behind)

    def _has(self, program: Program) -> bool:
        return (self.partial / program.package).exists()

    def _write_ahead(self, program: Program, weights: Iterator[dict]) -> None:
        """Write a package; meanwhile a thread makes the next of its weights."""
        with closing(ahead(weights)) as coming:  # or its thread outlives a failure
            self._whole(program.package, partial(self.write, program=program, weights=coming))
            for _ in coming:  # if the package was there, and the golden pass was not past it
                pass

    def _write_layers(self) -> None:
        groups = self.plan.groups()
        done = [self._is_done(*group) for group in groups]
        if not all(done):
            _ = self.pieces  # now, as the progress says
        self._advance("lowering")
        for (layers, programs), exist in zip(groups, done, strict=True):
            if exist:
                self._advance("layers", len(layers))
            elif programs[0].is_whole:
                self._write_ahead(programs[0], self.states(layers, self.golden))
            else:  # one layer, or what is behind the last
                states = [*self.states(layers, self.golden)]
                for program in programs:
                    write = partial(self.write, program=program, weights=states)
                    self._whole(program.package, write)

    def _is_done(self, layers: range, programs: list[Program]) -> bool:
        """Whether the programs of these layers are there, and the golden pass is past them."""
        passed = self.golden.file(layers.stop).exists() or (self.partial / "golden.npz").exists()
        return passed and all(map(self._has, programs))

    def states(self, layers: range, golden: GoldenPass | None = None) -> Iterator[dict]:
        """Yield each layer's state dict; the golden pass, if given, runs along."""
        alone = (decoder.block_weights(self.config, layer, self.read) for layer in layers)
        for layer, state in zip(layers, golden.layers(layers) if golden else alone, strict=True):
            yield state
            self._advance(f"layer {layer + 1} of {self.config.num_layers}")

    def _write_head(self) -> None:
        programs = self.plan.head + self.plan.pooled
        if (self.partial / "golden.npz").exists() and all(map(self._has, programs)):
            return
        for program in programs:
            self._write_ahead(program, self.parts(program, self.golden))
        self._whole("golden.npz", self.golden.write)

    def parts(self, program: Program, golden: GoldenPass | None = None) -> Iterator[dict]:
        """Yield the state dict of a `Head` with one part of the vocabulary, for each part that a
        program has; the golden pass, if given, runs along."""
        norm = self._outer["norm"].name if program.parts else ""
        for number, count in self.plan.vocabulary(program).items():
            first = sum(self.plan.splits[:number])
            rows = slice(first, first + count)

            def read(name: str, rows: slice = rows) -> np.ndarray:
                if name == norm:
                    return self.read(name)
                return torch.from_numpy(self._vocabulary[rows]).float().numpy()

            weights = decoder.head_weights(self.config, (count,), read)
            if golden:
                golden.head(count, weights)
            yield weights

    # --- manifest -----------------------------------------------------------------------------

    @cached_property
    def tokenizer(self) -> TokenizerFiles:
        return self.source.tokenizer()

    def _write_manifest(self, path: Path) -> None:
        config, programs, text = self.config, self.plan.programs, asdict(self.tokenizer)
        packages = [part_of(self.partial, own, self.plan.functions(own)) for own in programs]
        del text["json"]  # a file of its own
        hashes, sizes = self.journal.hashes(), regular_files(self.partial)
        manifest = Manifest(
            name=self.name,
            task=find(config.architecture).task,
            packages=packages,
            embedding=Embedding(shape=(config.vocab_size, config.hidden_size)),
            per_layer=self._per_layer,
            context=self.recipe.context,
            host=find(config.architecture).host(config),
            layers=layers_of(config),
            form=self.recipe.form,
            adapters=adapters_of(config, self.recipe.lora_slots),
            vectors=vectors_of(config, self.recipe),
            tags=tags_of(config),
            tokenizer=Tokenizer(**text),
            model=config.model_dump(),
            recipe=self.recipe,
            source=Source(
                kind=self.source.kind,
                files=[file.name for file in self.source.files],
                fingerprint=self.source.fingerprint(),
            ),
            tools={name: version(name) for name in ("coremltools", "torch", "numpy")}
            | {"python": platform.python_version()},
            files={name: sizes[name] for name in hashes},
            sha256=hashes,
        )
        fields = manifest.model_dump(mode="json")
        path.write_text(json.dumps(fields | {"seal": seal(fields)}, indent=2) + "\n")
