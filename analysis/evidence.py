"""The file between a model and its analysis: what each member contributed, the read-out, the labels.

It is written once, by a run or by anybody from any framework, and read by everything in this package.
One statement makes it exact, and readers hold every file to it:

    Σ_k contributions[k] @ head + bias  =  the model's logits.

Member logits alone, without a ledger, are evidence too: they are the contributions, `head` is the
identity and `norm` is "none".
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jax import Array
from jaxtyping import Float, Float32, Int32
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jaxlayers.ledger import Member
from jaxlayers.refusal import Refusal

VERSION = "1"
BUDGET = 1 << 29
"""Bytes that a function of this package works in, unless told otherwise."""

TENSORS = {
    "contributions": (np.float32, "K N D"),
    "head": (np.float32, "D C"),
    "bias": (np.float32, "C"),
    "labels": (np.int32, "N"),
    "targets": (np.float32, "N C"),
    "predictions": (np.int32, "N"),
    "loss": (np.float32, "N"),
    "group": (np.int32, "N"),
    "epsilon": (np.float32, "N"),
}
PROVENANCE = {
    "task": str,
    "architecture": str,
    "depth": int,
    "seed": int,
    "parameters": int,
    "training_flops": float,
    "regulariser": float,
    "update": float,
    "config_hash": str,
}
REQUIRED = ("contributions", "head", "bias", "labels")
TOLERANCE = 1e-5  # of the members' size: float32, a thousand terms


@dataclass(frozen=True, eq=False)
class Evidence:
    """K members' contributions to N predictions over C classes, and where they come from.

    A contribution is centred (`norm` "layer") and divided by the frozen statistic σ of the final
    norm; its γ is folded into `head`, its β into `bias`.
    """

    contributions: Float32[np.ndarray, "K N D"]
    head: Float32[np.ndarray, "D C"]
    bias: Float32[np.ndarray, " C"]
    labels: Int32[np.ndarray, " N"]
    members: tuple[Member, ...]
    norm: Literal["rms", "layer", "none"]
    targets: Float32[np.ndarray, "N C"] | None = None  # soft or real-valued, beside the labels
    predictions: Int32[np.ndarray, " N"] | None = None  # the model's own, to hold the ledger to
    loss: Float32[np.ndarray, " N"] | None = None  # the model's own cross-entropy in nats, likewise
    group: Int32[np.ndarray, " N"] | None = None  # the sequence an example is from, for the bootstrap
    epsilon: Float32[np.ndarray, " N"] | None = None  # the final norm's ε in units of σ²; none: zero
    task: str = ""
    architecture: str = ""
    depth: int = 0
    seed: int = 0
    parameters: int = 0
    training_flops: float = 0.0
    regulariser: float = 0.0  # λ of training on cross-entropy - λ · diversity
    update: float = 0.0  # how far training moved the final norm's output, root mean square; 0: not said
    config_hash: str = ""

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Evidence":
        """The evidence in a file, checked; its tensors stay on disk until they are used.

        Raises `Refusal`, naming the file and the reason, for anything but a whole and true evidence file.
        """
        path = Path(path)
        try:
            tensors, metadata = _read(path)
            _check_tensors(tensors)
            evidence = cls(**tensors, **_parse(metadata))  # type: ignore[arg-type]
            evidence.check()
        except Refusal as refusal:
            raise Refusal(f"{path}: {refusal}") from None
        return evidence

    def save(self, path: str | os.PathLike) -> None:
        """Write the file whole or not at all. Raises `Refusal` where `load` would refuse it."""
        self.check()
        tensors = {name: np.ascontiguousarray(tensor) for name, tensor in self._tensors().items()}
        members = json.dumps([member._asdict() for member in self.members])
        metadata = {"version": VERSION, "norm": self.norm, "members": members}
        metadata |= {name: str(getattr(self, name)) for name in PROVENANCE}
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
        try:
            save_file(tensors, unfinished, metadata)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)

    def check(self, budget: int = BUDGET) -> None:
        """Raise `Refusal`, with the reason, unless shapes, values and the ledger's identity are right."""
        tensors = self._tensors()
        _check_tensors(tensors)
        for name, tensor in tensors.items():
            _check_finite(name, tensor)
        self._check_members()
        for name in tensors.keys() & {"labels", "predictions"}:
            low, high = tensors[name].min(), tensors[name].max()
            if low < 0 or high >= self.classes:
                raise Refusal(f"{name} must lie in 0 to {self.classes - 1}, but runs from {low} to {high}")
        if not np.isfinite(self.regulariser):
            raise Refusal(f"regulariser is {self.regulariser}: give the λ of training, 0 for none")
        if not 0 <= self.update < np.inf:
            raise Refusal(f"update is {self.update}: give a root mean square, 0 where it is not known")
        if self.epsilon is not None and self.epsilon.min() < 0:
            raise Refusal(f"epsilon holds {self.epsilon.min():g}, but a norm's ε is not negative")
        self._check_ledger(budget)

    @property
    def examples(self) -> int:
        return self.labels.shape[0]

    @property
    def classes(self) -> int:
        return self.bias.shape[0]

    def member_logits(self, k: int) -> Float32[np.ndarray, "N C"]:
        """What member k adds to the logits; the bias is no member's."""
        return self.contributions[k] @ self.head

    def chunks(self, bytes_per_example: int, budget: int = BUDGET) -> Iterator[slice]:
        """The examples in runs whose work fits the budget, at least one at a time."""
        size = max(1, budget // bytes_per_example)
        return (slice(start, min(start + size, self.examples)) for start in range(0, self.examples, size))

    def logits(self, budget: int = BUDGET) -> Iterator[tuple[slice, Float32[np.ndarray, "n C"]]]:
        """The model's logits, a run of examples at a time: which ones, and theirs."""
        for chunk in self.chunks(4 * 4 * self.classes + 12 * self.head.shape[0], budget):
            yield chunk, self._stream(chunk).astype(np.float32) @ self.head + self.bias

    def _stream(self, chunk: slice) -> Float[np.ndarray, "n D"]:
        """Their sum; float64, since large contributions may cancel."""
        return self.contributions[:, chunk].sum(0, dtype=np.float64)

    def _tensors(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in TENSORS if getattr(self, name) is not None}

    def _check_members(self) -> None:
        names = [member.name for member in self.members]
        if len(names) != len(self.contributions):
            raise Refusal(
                f"members names {len(names)} members, but contributions holds {len(self.contributions)}"
            )
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise Refusal(f"members names {repeated[0]!r} twice: give each member a name of its own")
        if self.norm not in ("rms", "layer", "none"):
            raise Refusal(f"norm is {self.norm!r}, but must be 'rms', 'layer' or 'none'")

    def _check_ledger(self, budget: int) -> None:
        """Hold the sum of the contributions to the norm, the predictions and the loss that are given."""
        reach = np.sqrt(np.einsum("dc,dc->c", self.head, self.head).max())
        for chunk, logits in self.logits(budget):
            contributions, stream = self.contributions[:, chunk], self._stream(chunk)
            size = np.sqrt(np.einsum("knd,knd->kn", contributions, contributions)).sum(0, dtype=np.float64)
            if self.norm != "none":
                self._check_norm(chunk, contributions, stream, size / np.sqrt(len(self.head)))
            tolerance = TOLERANCE * (1 + reach * size + np.abs(self.bias).max())
            top = logits.max(1)
            if self.predictions is not None:
                short = top - np.take_along_axis(logits, self.predictions[chunk, None], 1)[:, 0]
                _hold(chunk, short, tolerance, "the largest logit exceeds that of the given prediction")
            if self.loss is not None:
                log_total = np.log(np.exp(logits - top[:, None]).sum(1, dtype=np.float64))
                at_label = np.take_along_axis(logits, self.labels[chunk, None], 1)[:, 0]
                gap = np.abs(top - at_label + log_total - self.loss[chunk])
                _hold(chunk, gap, tolerance, "the cross-entropy of the logits differs from the given loss")

    def _check_norm(
        self,
        chunk: slice,
        contributions: Float32[np.ndarray, "K n D"],
        stream: Float[np.ndarray, "n D"],
        size: Float[np.ndarray, " n"],
    ) -> None:
        """Renormalising all members must give back the model: the stream's mean square is 1 - ε/σ²."""
        epsilon = 0.0 if self.epsilon is None else self.epsilon[chunk]
        excess = np.abs((stream**2).mean(1) + epsilon - 1)
        _hold(
            chunk, excess, TOLERANCE * (1 + size) ** 2, "mean square of the sum plus epsilon differs from 1"
        )
        if self.norm == "layer":
            mean = np.abs(contributions.mean(2, dtype=np.float64)).max(0)
            _hold(
                chunk,
                mean,
                TOLERANCE * (1 + size),
                "norm is 'layer', but the mean of a contribution differs from 0",
            )


def renormalise(
    stream: Float[Array, "... N D"], norm: str, epsilon: Float[Array, " #N"]
) -> Float[Array, "... N D"]:
    """The final norm, its statistic taken anew from this sum of contributions (which are centred).

    With all members it gives back the model's own stream. An empty sum stays zero.
    """
    if norm == "none":
        return stream
    square = (stream * stream).mean(-1) + epsilon
    return stream * (square + 1e-30)[..., None] ** -0.5


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The tensors, mapped and not read, and the metadata."""
    if not path.is_file():
        raise Refusal("there is no such file; give the path of an evidence file (safetensors)")
    try:
        with safe_open(path, framework="numpy") as file:
            names, metadata = set(file.keys()), file.metadata() or {}
    except SafetensorError as error:
        raise Refusal(f"not a whole safetensors file ({error})") from None
    if metadata.get("version") != VERSION:
        found = metadata.get("version", "none")
        raise Refusal(f"the metadata's evidence version is {found}; this program reads version {VERSION}")
    if missing := sorted(set(REQUIRED) - names):
        raise Refusal(f"the tensor {missing[0]!r} is missing")
    if unknown := sorted(names - set(TENSORS)):
        raise Refusal(f"the tensor {unknown[0]!r} is unknown; evidence holds only {', '.join(TENSORS)}")
    with path.open("rb") as file:  # safetensors has vetted the header; it tells where each tensor lies
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    codes = {"F32": np.float32, "I32": np.int32}
    tensors: dict[str, np.ndarray] = {}
    for name in names:
        entry = header[name]
        if codes.get(entry["dtype"]) != TENSORS[name][0]:
            raise Refusal(f"{name} is of type {entry['dtype']}, but must be {TENSORS[name][0].__name__}")
        if 0 in entry["shape"]:
            raise Refusal(f"{name} has shape {tuple(entry['shape'])}: it is empty")
        start = 8 + length + entry["data_offsets"][0]
        tensors[name] = np.memmap(path, codes[entry["dtype"]], "r", start, tuple(entry["shape"]))
    return tensors, metadata


def _parse(metadata: dict[str, str]) -> dict[str, object]:
    """Members, norm and provenance, of their right types."""
    for name in ("members", "norm"):
        if name not in metadata:
            raise Refusal(f"the metadata {name!r} is missing")
    try:
        members = tuple(
            Member(str(m["name"]), str(m["kind"]), int(m["block"])) for m in json.loads(metadata["members"])
        )
    except (ValueError, TypeError, KeyError):
        raise Refusal("the metadata 'members' must be a JSON list of {name, kind, block}") from None
    parsed: dict[str, object] = {"members": members, "norm": metadata["norm"]}
    for name, kind in PROVENANCE.items():
        try:
            parsed[name] = kind(metadata.get(name, "0" if kind is not str else ""))
        except ValueError:
            raise Refusal(
                f"the metadata {name!r} is {metadata[name]!r}, which is no {kind.__name__}"
            ) from None
    return parsed


def _check_tensors(tensors: dict[str, np.ndarray]) -> None:
    """Each symbol (K, N, D, C) must stand for one number throughout."""
    sizes: dict[str, int] = {}
    for name, (dtype, symbols) in TENSORS.items():
        if name not in tensors:
            continue
        tensor, axes = tensors[name], symbols.split()
        if tensor.dtype != dtype:
            raise Refusal(f"{name} is of type {tensor.dtype}, but must be {np.dtype(dtype)}")
        expected = [sizes.get(axis, axis) for axis in axes]
        if tensor.ndim != len(axes) or any(
            size == 0 or size != sizes.setdefault(axis, size)
            for axis, size in zip(axes, tensor.shape, strict=True)
        ):
            known = ", ".join(
                f"{axis}={size}" for axis, size in zip(axes, expected, strict=True) if axis != size
            )
            raise Refusal(
                f"{name} has shape {tensor.shape}, but must be [{symbols}] with {known or 'no size 0'}"
            )


def _check_finite(name: str, tensor: np.ndarray) -> None:
    """Row by row of the first axis, so that a mapped file is never held whole."""
    if tensor.dtype.kind == "f" and not all(np.isfinite(row).all() for row in tensor):
        raise Refusal(f"{name} holds NaN or infinite values: leave such examples out before saving")


def _hold(chunk: slice, gap: Float[np.ndarray, " n"], tolerance: Float[np.ndarray, " n"], what: str) -> None:
    worst = int(np.argmax(gap - tolerance))
    if not gap[worst] <= tolerance[worst]:  # NaN is no identity
        raise Refusal(
            f"the ledger's identity is broken at example {chunk.start + worst}: {what} by "
            f"{gap[worst]:.3g} (rounding allows {tolerance[worst]:.1g})"
        )
