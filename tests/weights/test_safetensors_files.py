"""Checkpoints written, read and refused; the safetensors library is the reference for both directions."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from porter.errors import ArtifactError, WeightError
from porter.weights.safetensors_files import DTYPES, INDEX, SINGLE, TensorSpec, open_checkpoint, write_checkpoint

NAMES = {dtype: name for name, dtype in DTYPES.items()}


def some_tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "odd": torch.randint(0, 255, (3,), generator=generator, dtype=torch.uint8),  # first, to misalign what follows
        "w": torch.randn(7, 5, generator=generator),
        "w_bf16": torch.randn(4, 3, 2, generator=generator).bfloat16(),
        "scale": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.zeros(0, 3, dtype=torch.float16),
        "flags": torch.tensor([True, False, True]),
        "größe": torch.arange(4),
    }


def spec_of(name: str, tensor: Tensor) -> TensorSpec:
    return TensorSpec(name, tuple(tensor.shape), NAMES[tensor.dtype])


def write(folder: Path, tensors: dict[str, Tensor], rows: int = 2, shard_bytes: int = 10**9) -> None:
    def blocks(name: str) -> Iterator[Tensor]:
        tensor = tensors[name]
        yield from tensor.split(rows) if tensor.dim() else [tensor]

    specs = [spec_of(name, tensor) for name, tensor in tensors.items()]
    write_checkpoint(folder, specs, blocks, shard_bytes=shard_bytes)


def same(left: Tensor, right: Tensor) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(left, right)


def test_the_safetensors_library_reads_what_porter_writes(tmp_path: Path) -> None:
    tensors = some_tensors()
    write(tmp_path / "model", tensors)
    loaded = load_file(tmp_path / "model" / SINGLE)
    assert loaded.keys() == tensors.keys()
    assert all(same(loaded[name], tensor) for name, tensor in tensors.items())
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    infos = open_checkpoint(tmp_path / "model").tensors.values()
    assert all(info.start % DTYPES[info.dtype].itemsize == 0 for info in infos)


@pytest.mark.parametrize("dtype", DTYPES)
def test_porter_reads_every_dtype_the_safetensors_library_writes(tmp_path: Path, dtype: str) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(DTYPES[dtype])
    save_file({"x": tensor}, tmp_path / SINGLE)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.tensors["x"].dtype == dtype
    read = checkpoint.read("x")
    assert read.dtype == tensor.dtype and read.tolist() == tensor.tolist()


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 9, None])
def test_blocks_are_the_rows_in_order(tmp_path: Path, rows: int | None) -> None:
    tensors = some_tensors()
    save_file(tensors, tmp_path / SINGLE)
    checkpoint = open_checkpoint(tmp_path)
    for name, tensor in tensors.items():
        blocks = list(checkpoint.blocks(name, rows=rows))
        assert all(len(block) <= rows for block in blocks if rows and block.dim())
        assert same(torch.cat(blocks) if tensor.dim() else blocks[0], tensor)
        assert same(checkpoint.read(name), tensor)


def test_shards_round_trip_and_carry_an_index_like_huggingface(tmp_path: Path) -> None:
    tensors = {f"layers.{i}.w": torch.full((4, 8), float(i)) for i in range(5)}  # 128 bytes each
    write(tmp_path, tensors, shard_bytes=256)
    names = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, INDEX]
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"] == {"total_size": 640}
    assert [index["weight_map"][name] for name in tensors] == [names[0], names[0], names[1], names[1], names[2]]
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.tensors["layers.4.w"].file.name == names[2]
    assert all(same(checkpoint.read(name), tensor) for name, tensor in tensors.items())


def test_a_tensor_wider_than_a_shard_gets_its_own(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(2), "huge": torch.zeros(100), "b": torch.zeros(2)}
    write(tmp_path, tensors, shard_bytes=64)
    weight_map = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    assert len(set(weight_map.values())) == 3


def test_transformers_loads_a_sharded_checkpoint(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32, num_hidden_layers=2, hidden_size=16, intermediate_size=24, num_attention_heads=2
    )
    model = LlamaForCausalLM(config)
    config.save_pretrained(tmp_path)
    write(tmp_path, model.state_dict(), shard_bytes=4000)
    assert (tmp_path / INDEX).is_file()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert all(same(loaded[name], tensor) for name, tensor in model.state_dict().items())


def test_a_checkpoint_copies_through_its_own_blocks(tmp_path: Path) -> None:
    write(tmp_path / "first", some_tensors())
    first = open_checkpoint(tmp_path / "first")
    write_checkpoint(tmp_path / "second", first.tensors.values(), first.blocks)
    assert (tmp_path / "first" / SINGLE).read_bytes() == (tmp_path / "second" / SINGLE).read_bytes()


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    def blocks(name: str) -> Iterator[Tensor]:
        yield torch.zeros(2, 4)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path / "model", [TensorSpec("w", (4, 4), "F32")], blocks)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    write(tmp_path, some_tensors())  # other files do not mind
    with pytest.raises(ArtifactError, match=r"already holds a checkpoint, model\.safetensors"):
        write(tmp_path, some_tensors())
    assert (tmp_path / "config.json").read_text() == "{}"


def test_a_full_disk_is_said_beforehand(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"bytes free\n  expected: 4,000,000,000,000,000 bytes"):
        write_checkpoint(tmp_path / "model", [TensorSpec("w", (10**15,), "F32")], lambda name: iter(()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "block, match",
    [
        (torch.zeros(2, 3), r"a block of w is float32 \[2, 3\], expected rows of F32 \[4, 4\]"),
        (torch.zeros(4, 4).half(), r"a block of w is float16 \[4, 4\]"),
        (torch.zeros(3, 4), "the blocks of w came to 48 bytes, expected 64"),
        (torch.zeros(5, 4), "the blocks of w came to 80 bytes, expected 64"),
    ],
    ids=["shape", "dtype", "short", "long"],
)
def test_blocks_that_are_not_the_tensor_are_refused(tmp_path: Path, block: Tensor, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        write_checkpoint(tmp_path / "m", [TensorSpec("w", (4, 4), "F32")], lambda name: iter([block]))


def test_a_name_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="w is given twice"):
        write_checkpoint(tmp_path / "m", [TensorSpec("w", (1,), "F32")] * 2, lambda name: iter([torch.zeros(1)]))


def refusal(folder: Path) -> ArtifactError:
    with pytest.raises(ArtifactError) as caught:
        open_checkpoint(folder)
    assert caught.value.exit_code == 3
    return caught.value


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    assert "nowhere does not exist" in refusal(tmp_path / "nowhere").wrong
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert "is a file" in refusal(tmp_path / "pytorch_model.bin").wrong
    assert "holds no safetensors checkpoint, but pytorch_model.bin" in refusal(tmp_path).wrong


@pytest.mark.parametrize("keep", [0, 7, 8, 40, -1], ids=lambda keep: f"bytes{keep}")
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    save_file(some_tensors(), tmp_path / SINGLE)
    whole = (tmp_path / SINGLE).read_bytes()
    (tmp_path / SINGLE).write_bytes(whole[:keep])
    error = refusal(tmp_path)
    assert str(tmp_path / SINGLE) in error.wrong
    if keep == -1:
        assert f"truncated: {len(whole) - 1:,} bytes" in error.wrong
        assert error.expected == f"the {len(whole):,} bytes that its header says"


def test_a_truncated_shard_is_refused_before_it_is_read(tmp_path: Path) -> None:
    write(tmp_path, {name: torch.zeros(100) for name in "abc"}, shard_bytes=400)
    last = tmp_path / "model-00003-of-00003.safetensors"
    last.write_bytes(last.read_bytes()[:-4])
    assert f"{last} is truncated" in refusal(tmp_path).wrong


def with_header(folder: Path, header: object, data: bytes = b"") -> ArtifactError:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / SINGLE).write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    return refusal(folder)


def test_headers_that_are_not_what_they_say_are_refused(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    (tmp_path / SINGLE).write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert "Git LFS" in refusal(tmp_path).fix
    assert "header in JSON" in with_header(tmp_path, b"\xff\xfe{}").expected
    assert "header in JSON" in with_header(tmp_path, []).expected
    assert "RecursionError" in with_header(tmp_path, b"[" * 99_999).expected
    assert "KeyError" in with_header(tmp_path, {"w": {"dtype": "F32"}}).expected
    assert "w has dtype F4" in with_header(tmp_path, {"w": entry | {"dtype": "F4"}}, bytes(8)).wrong
    assert "in 8 bytes" in with_header(tmp_path, {"w": entry | {"shape": [3]}}, bytes(8)).wrong
    assert "too long" in with_header(tmp_path, {"w": entry}, bytes(9)).wrong
    overlap = {"v": entry, "w": entry | {"data_offsets": [4, 12]}}
    assert "w starts at byte" in with_header(tmp_path, overlap, bytes(12)).wrong


def test_indexes_that_disagree_with_their_shards_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {name: torch.zeros(100) for name in "abc"}, shard_bytes=400)
    index = json.loads((tmp_path / INDEX).read_text())
    first, second = (f"model-0000{i}-of-00003.safetensors" for i in (1, 2))

    def with_map(**weight_map: str) -> str:
        (tmp_path / INDEX).write_text(json.dumps(index | {"weight_map": index["weight_map"] | weight_map}))
        return refusal(tmp_path).wrong

    assert "lacks d, which model.safetensors.index.json says it holds" in with_map(d=first)
    assert f"{first} lacks b" in with_map(b=first)
    assert "lacks gone.safetensors" in with_map(c="gone.safetensors")
    (tmp_path / "copy.safetensors").write_bytes((tmp_path / second).read_bytes())
    assert f"b is in two shards, copy.safetensors and {second}" in with_map(b="copy.safetensors", c=second)
    (tmp_path / INDEX).write_text("{}")
    assert "cannot be read" in refusal(tmp_path).wrong


def test_a_tensor_that_is_not_there_is_answered_with_the_closest(tmp_path: Path) -> None:
    write(tmp_path, some_tensors())
    with pytest.raises(WeightError, match=r"did you mean w_bf16\?"):
        open_checkpoint(tmp_path).read("w_bf61")


def test_a_file_cut_while_open_is_an_error_not_garbage(tmp_path: Path) -> None:
    write(tmp_path, {"w": torch.ones(1000)})
    checkpoint = open_checkpoint(tmp_path)
    path = tmp_path / SINGLE
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(ArtifactError, match="w ends after 3,600 of 4,000 bytes"):
        checkpoint.read("w")


MEASURE = """
import sys
from pathlib import Path
import torch
from porter.weights.safetensors_files import TensorSpec, open_checkpoint, write_checkpoint

def peak_mib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

def blocks(name):
    for _ in range(25):
        yield torch.ones(4 * 2**20 // 1024, 1024)  # 16 MiB

torch.ones(2**20).min()  # the first operation maps 95 MiB of libraries
folder, before = Path(sys.argv[1]), peak_mib()
write_checkpoint(folder, [TensorSpec(name, (102400, 1024), "F32") for name in "ab"], blocks)
assert (folder / "model.safetensors").stat().st_size > 800e6
written = peak_mib()
checkpoint = open_checkpoint(folder)
least = min(float(block.min()) for name in "ab" for block in checkpoint.blocks(name))
assert least == 1
print(written - before, peak_mib() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_memory_stays_at_a_few_blocks(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "model")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    written_mib, read_mib = map(float, done.stdout.split())
    assert written_mib < 300  # of 800 in blocks of 16; 125 to 205 measured: glibc keeps up to eight freed blocks
    assert read_mib < 400  # of 800 in blocks of 32, on top of the above; 270 measured


def test_what_comes_next_is_asked_for_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"a": torch.zeros(4, 3), "b": torch.ones(5)}, tmp_path / SINGLE)
    checkpoint, asked = open_checkpoint(tmp_path), []
    monkeypatch.setattr(os, "posix_fadvise", lambda _file, *what: asked.append(what))
    checkpoint.prefetch(["b", "a"])
    wanted = [(checkpoint.info(name).start, checkpoint.info(name).size_bytes) for name in ("b", "a")]
    assert asked == [(*where, os.POSIX_FADV_WILLNEED) for where in wanted]
    monkeypatch.delattr(os, "posix_fadvise")
    checkpoint.prefetch(["a"])  # macOS has none
