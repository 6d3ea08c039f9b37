"""A module whose parts have other names: random ones, registered in another order, layers no list any more."""

import random
import string

from torch import nn


def scramble(root: nn.Module, seed: int) -> nn.Module:
    """Renames every submodule, parameter and buffer of a model in place; its code finds them as attributes still."""
    chance = random.Random(seed)
    for module in list(root.modules()):
        if isinstance(module, nn.ModuleList):
            continue  # goes with the module that holds it
        lists = {name: child for name, child in module._modules.items() if isinstance(child, nn.ModuleList)}
        children = [each for name, each in module._modules.items() if name not in lists]
        children += [each for held in lists.values() for each in held]
        for name, child in list(module._modules.items()):
            module.__dict__[name] = list(child) if name in lists else child
        module._modules.clear()
        for child in chance.sample(children, len(children)):
            module._modules[_name(chance)] = child
        for table in (module._parameters, module._buffers):
            values = [(name, value) for name, value in table.items() if value is not None]
            for name, value in values:
                module.__dict__[name] = value
                del table[name]
            for _, value in chance.sample(values, len(values)):
                table[_name(chance)] = value
    return root


def _name(chance: random.Random) -> str:
    return "".join(chance.choices(string.ascii_lowercase, k=6))
