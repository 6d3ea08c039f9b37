"""porter: port a language model, and prove that the port computes what its reference computes.

`porter.build`, `porter.diff`, `porter.explain`, `porter.patch` are the Python face of the commands of the same names.
Importing porter stays cheap: torch is imported when one of them is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from porter.comparison.diff import diff
    from porter.explanation.explain import explain
    from porter.models.build import build
    from porter.patching.auto import AutoModelForCausalLM
    from porter.patching.patch import patch, unpatch

__all__ = ["AutoModelForCausalLM", "build", "diff", "explain", "patch", "unpatch"]
__version__ = "0.1.0"

_FACE = {
    "AutoModelForCausalLM": "porter.patching.auto",
    "build": "porter.models.build",
    "diff": "porter.comparison.diff",
    "explain": "porter.explanation.explain",
    "patch": "porter.patching.patch",
    "unpatch": "porter.patching.patch",
}


def __getattr__(name: str) -> Any:
    if name in _FACE:
        return getattr(import_module(_FACE[name]), name)
    raise AttributeError(f"module 'porter' has no attribute {name!r}")
