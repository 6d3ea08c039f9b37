"""A model's parameters in groups for an optimizer: embeddings and head at a rate of their own, norms without decay.

What a parameter is, the blueprint says, not its name: Cohere's norms have matrices, an untied head is no embedding by
type, and GPT-OSS's experts have matrices of biases.
"""

from collections.abc import Iterator
from math import inf
from typing import Any, TypedDict

from torch import nn

from porter.errors import UsageError
from porter.patching.patch import blueprint_of, unwrapped
from porter.references.hooks import find_module, modules_by_path
from porter.specs.blueprint import Blueprint, norms


class Group(TypedDict):
    """A group as torch's optimizers take it; the name is for who logs rates."""

    name: str
    params: list[nn.Parameter]
    lr: float
    weight_decay: float


def parameter_groups(
    model: Any,
    *,
    lr: float,
    embedding_lr: float | None = None,
    weight_decay: float = 0.0,
    embedding_weight_decay: float | None = None,
) -> list[Group]:
    """Every trainable parameter of a HuggingFace model, once, in groups; torch.optim.AdamW(parameter_groups(…)).

    Args:
        model: bare, patched or wrapped; PEFT's adapters are with the module that they are on.
        lr: of all but embeddings and head.
        embedding_lr: of the tables of tokens and positions and of the head, which is often a fifth to a tenth of lr
            where a model learns new text; None: lr.
        weight_decay: of matrices; norms, biases and other vectors have none.
        embedding_weight_decay: of the tables and the head; None: weight_decay.

    Returns:
        Groups that are not empty: matrices, vectors, embeddings, biases of embeddings. A tied head is in one.

    Raises:
        SpecError: no family is of its model_type.
        UsageError: an embedding_lr, but tables and head are frozen; or a rate is negative or no number.
    """
    rates = {"lr": lr, "embedding_lr": embedding_lr, "weight_decay": weight_decay}
    for name, value in (rates | {"embedding_weight_decay": embedding_weight_decay}).items():
        if value is not None and not 0 <= value < inf:
            fix = f"Pass {name}={-value}, or leave it out." if -inf < value < 0 else "Pass a number, or leave it out."
            raise UsageError(f"{name} {value}", "0 or more", fix)
    bare = unwrapped(model)
    if bare.get_output_embeddings() is None:
        wrong = f"{type(bare).__name__} has no output head, and the spec's paths are those of a model with one"
        raise UsageError(wrong, "the model with its head", "Pass what AutoModelForCausalLM gives.")
    blueprint = blueprint_of(bare)
    tables = {id(each) for module in tables_of(bare, blueprint) for each in module.parameters()}
    of_norms = {id(each) for module in _norms_of(bare, blueprint) for each in module.parameters()}
    table_lr = lr if embedding_lr is None else embedding_lr
    table_decay = weight_decay if embedding_weight_decay is None else embedding_weight_decay
    groups: dict[tuple[bool, bool], Group] = {
        (False, True): {"name": "matrices", "params": [], "lr": lr, "weight_decay": weight_decay},
        (False, False): {"name": "vectors", "params": [], "lr": lr, "weight_decay": 0.0},
        (True, True): {"name": "embeddings", "params": [], "lr": table_lr, "weight_decay": table_decay},
        (True, False): {"name": "vectors of embeddings", "params": [], "lr": table_lr, "weight_decay": 0.0},
    }
    for path, parameter in bare.named_parameters():  # which gives what is tied once
        if parameter.requires_grad:
            decays = parameter.ndim > 1 and id(parameter) not in of_norms and not path.endswith("bias")
            groups[id(parameter) in tables, decays]["params"].append(parameter)
    if embedding_lr is not None and not groups[True, True]["params"]:
        raise UsageError(
            f"embedding_lr={embedding_lr}, but embeddings and head are frozen", "a table that is trained",
            'LoraConfig(modules_to_save=["embed_tokens", "lm_head"]) trains them beside adapters; or leave it out.',
        )  # fmt: skip
    return [group for group in groups.values() if group["params"]]


def tables_of(model: Any, blueprint: Blueprint) -> Iterator[nn.Module]:
    """The modules of the tables of tokens and positions, and the head."""
    modules = modules_by_path(model, blueprint)
    for name in ("embed", "pos"):
        module = find_module(modules, blueprint, name) if name in blueprint.weights.globals else None
        if module is not None:
            yield module
    head = model.get_output_embeddings()
    if isinstance(head, nn.Module):
        yield head


def _norms_of(model: Any, blueprint: Blueprint) -> Iterator[nn.Module]:
    modules = modules_by_path(model, blueprint)
    names: list[str] = [name for name in ("embed_norm", "final_norm") if name in blueprint.weights.globals]
    for index, block in enumerate(blueprint.blocks):
        found = norms(block, blueprint.norm, blueprint.dims)
        names += [f"layers.{index}.{name}" for name in found if name in blueprint.weights.block]
    for name in names:
        module = find_module(modules, blueprint, name)
        if module is not None and not _is_layer(module):
            yield module


def _is_layer(module: nn.Module) -> bool:
    """Whether more than a norm is within: the owner of a list of norms may be the attention itself."""
    return any(isinstance(each, nn.Linear) for each in module.modules())
