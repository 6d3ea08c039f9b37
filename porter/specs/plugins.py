"""What is code and no data: tables of plugins, porter's own and those of installed packages.

A package offers one through an entry point of the group `porter.plugins`, whose object is a Plugin; a spec names it by
its key alone, and lists it under `plugins`. What it computes is plain torch, imported when a model is made of it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Literal

from porter.errors import SpecError, closest
from porter.specs.kinds import Strict
from porter.specs.mla import Mla, mla_norms, mla_projections

GROUP = "porter.plugins"
Kind = Literal["mixer", "activation", "weight", "router", "rope_scaling"]


class NoParams(Strict):
    """A plugin without parameters."""


@dataclass(frozen=True)
class Plugin:
    """A row of a table.

    Attributes:
        kind: mixer: attention of another kind, in place of `block.attn`'s; activation: a function of one tensor;
            weight: a packed weight and its scales made one tensor; router: scores [..., experts] of logits alike;
            rope_scaling: inverse frequencies [R / 2] and the factor on cos and sin, of theta=, dim=, scaling= (what the
            spec says, without its null keys), max_positions= and seq_len=.
        key: how a spec names it.
        reference: module:name, in plain torch. Of an activation, a function Tensor -> Tensor; of a mixer, a class made
            and called as porter.models.attention.Attention is.
        triton: the same, fused; None: the reference serves.
        inverse: of a weight, module:name of what packs it again, given its scales; None: nothing does.
        params: what a spec says of it besides its key.
        projections: of a mixer, (params, block, dims) -> {name: (out, in, bias)} of its linear maps, attn.…
        norms: of a mixer, (params, norm, dims) -> {name: (norm, shape)} of its norms.
        cached: of a mixer, the two nodes that a cache holds.
    """

    kind: Kind
    key: str
    reference: str
    triton: str | None = None
    inverse: str | None = None
    params: type[Strict] = NoParams
    projections: Any = None
    norms: Any = None
    cached: tuple[str, str] = ("attn.k_rope", "attn.v")

    def load(self, ops: str = "reference") -> Any:
        """What computes it.

        Raises:
            SpecError: its module, or the name in it, is not there.
        """
        path = self.triton if ops == "triton" and self.triton else self.reference
        module, _, name = path.partition(":")
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise SpecError(
                f"plugin {self.key!r} names {path}, which cannot be imported ({error})",
                "module:name of what computes it",
                "Correct it in the package that offers the plugin, or install what that needs.",
            ) from error


OWN = (
    Plugin(
        "mixer", "mla", "porter.models.mla:LatentAttention", params=Mla, projections=mla_projections, norms=mla_norms,
        cached=("attn.latent", "attn.k_pe"),
    ),
    Plugin(
        "weight", "mxfp4", "porter.weights.transforms:dequantize_mxfp4",
        inverse="porter.weights.transforms:quantize_mxfp4",
    ),
    Plugin(
        "weight", "fp8", "porter.weights.transforms:dequantize_fp8", inverse="porter.weights.transforms:quantize_fp8"
    ),
)  # fmt: skip


@dataclass(frozen=True)
class _Found:
    """All plugins by kind and key, and entry points that gave none."""

    plugins: Mapping[tuple[Kind, str], Plugin]
    broken: Mapping[str, str] = field(default_factory=dict)


@lru_cache(maxsize=1)
def _installed() -> _Found:
    found = {(plugin.kind, plugin.key): plugin for plugin in OWN}
    broken = {}
    for point in entry_points(group=GROUP):
        try:
            plugin = point.load()
        except (ImportError, AttributeError) as error:
            broken[point.name] = f"{point.value} cannot be imported ({error})"
            continue
        if not isinstance(plugin, Plugin):
            broken[point.name] = f"{point.value} is no porter.specs.plugins.Plugin"
        elif (plugin.kind, plugin.key) in found:
            broken[point.name] = f"{point.value} offers the {plugin.kind} {plugin.key}, which is there already"
        else:
            found[plugin.kind, plugin.key] = plugin
    return _Found(found, broken)


def forget_plugins() -> None:
    """Looks for entry points anew the next time: after sys.path changed, say."""
    _installed.cache_clear()


def plugin_of(kind: Kind, key: str) -> Plugin | None:
    """The plugin of that key; None where no package offers it."""
    return _installed().plugins.get((kind, key))


def check_plugins(named: Iterable[str], place: object) -> None:
    """Refuses a spec that names a plugin which is not installed.

    Raises:
        SpecError: it is so, with what keeps a broken one from being found.
    """
    found = _installed()
    known = sorted({key for _, key in found.plugins})
    for key in named:
        if key not in known:
            why = f"; its entry point is broken: {found.broken[key]}" if key in found.broken else ""
            raise SpecError(
                f"{place}: plugins names {key!r}, which is not installed{why}",
                closest(key, known),
                f"Install the package that offers it as an entry point of the group {GROUP}.",
            )


def or_plugin(kind: Kind) -> Callable[[Any, Callable[[Any], Any]], Any]:
    """A value that is a plugin's key, else what the closed set allows."""

    def read(value: Any, choose: Callable[[Any], Any]) -> Any:
        return value if isinstance(value, str) and plugin_of(kind, value) else choose(value)

    return read


def used_plugins(block: Any) -> dict[str, str]:
    """The plugins that a layer is made of: key -> the axis that names it."""
    found = {} if block.mixer is None else {block.mixer.kind: "mixer"}
    kinds: tuple[tuple[Kind, str, Any], ...] = (
        ("activation", "mlp.act", block.mlp.act),
        ("router", "moe.router.score", block.moe and block.moe.router.score),
        ("rope_scaling", "rope.scaling", block.rope and block.rope.scaling and block.rope.scaling.rope_type),
    )
    return found | {key: axis for kind, axis, key in kinds if key and plugin_of(kind, key)}


def read_mixer(value: Any) -> Any:
    """The parameters of a mixer, by its kind; null: none.

    Raises:
        ValueError: no such mixer is installed, or its parameters are wrong.
    """
    if not isinstance(value, Mapping):
        return value
    plugin = plugin_of("mixer", str(value.get("kind")))
    if plugin is None:
        known = ", ".join(key for kind, key in _installed().plugins if kind == "mixer")
        raise ValueError(f"no mixer is called {value.get('kind')!r}; installed: {known}")
    return plugin.params.model_validate(value)
