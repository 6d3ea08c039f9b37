"""Where a benchmark ran: the GPU, its driver, the versions of everything that is compared, and what code it was."""

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import porter_kernels
from porter import __version__

ROOT = Path(__file__).resolve().parents[2]
MAY_DIFFER = ("dirty", "threads")  # between a run and one that it resumes; `sources` says whether the code is the same


def describe_environment(distributions: Iterable[str], commit: str | None = None) -> dict[str, str]:
    """Names and values for a report.

    Args:
        distributions: whose versions count beside those of torch, triton and transformers.
        commit: to record where there is no git.
    """
    on_gpu = torch.cuda.is_available()
    found = _git("rev-parse", "--short=12", "HEAD")
    return {
        "gpu": torch.cuda.get_device_name() if on_gpu else "none",
        "driver": _run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") if on_gpu else "none",
        "cuda": str(torch.version.cuda),
        "torch": torch.__version__,
        "triton": version_of("triton"),
        "transformers": version_of("transformers"),
        **{name: version_of(name) for name in dict.fromkeys(distributions)},
        "python": platform.python_version(),
        "porter": __version__,
        "commit": commit or found or "unknown",
        "dirty": _dirty() if found else "unknown",
        "sources": hash_sources(),
        "TF32 matmul": str(torch.backends.cuda.matmul.allow_tf32),
        "TF32 cudnn": str(torch.backends.cudnn.allow_tf32),
        "bf16 reduced precision reduction": str(torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction),
        "TRITON_DEFAULT_FP_FUSION": os.environ.get("TRITON_DEFAULT_FP_FUSION", "unset"),
        "threads": str(torch.get_num_threads()),
    }


def version_of(distribution: str) -> str:
    """Its version, or "missing"."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "missing"


def hash_sources() -> str:
    """A hash of the kernels, of patching and of this package: two runs with the same one measured the same code."""
    digest = hashlib.sha256()
    for folder in (Path(porter_kernels.__file__).parent, Path(__file__).parent, Path(__file__).parents[1] / "patching"):
        for path in sorted(each for each in folder.rglob("*") if each.suffix in (".py", ".json")):
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def differences(earlier: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What keeps a run from being resumed: GPU, versions, commit, sources and flags that changed."""
    return [
        f"{name} was {earlier.get(name, 'not recorded')}, is {now.get(name, 'not recorded')}"
        for name in {**earlier, **now}
        if name not in MAY_DIFFER and earlier.get(name) != now.get(name)
    ]


def _dirty() -> str:
    changed = _git("status", "--porcelain", "--untracked-files=no").splitlines()
    return f"yes, {len(changed)} files" if changed else "no"


def _git(*arguments: str) -> str:
    return _run("git", "-C", str(ROOT), *arguments)


def _run(*command: str) -> str:
    """What a command prints; empty where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
