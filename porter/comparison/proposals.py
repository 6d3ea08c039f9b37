"""Layouts that a port's nodes fit where they are not what the map says: proposed as lines of it, never applied."""

from torch import Tensor

from porter.comparison.names import place_in_unit
from porter.comparison.observed import Proposal
from porter.comparison.report import NodeDiff
from porter.references.user_module.channels import fit
from porter.references.user_module.draft_text import line_text
from porter.references.user_module.lane import ModuleLane
from porter.references.user_module.layout import heads_of
from porter.references.user_module.map_file import Line


class Proposals:
    """Looks at each node that does not pass, once, in the first layer where it does not."""

    def __init__(self) -> None:
        self.found: dict[str, Proposal] = {}
        self._tried: set[str] = set()

    def look(self, lane: ModuleLane, node: NodeDiff, golden: Tensor) -> None:
        """Tries the layouts that a map can declare on a node of the layer that `lane` has just run.

        Args:
            golden: [1, T, …], float64.
        """
        name = place_in_unit(node.name)
        if node.status not in ("WARN", "FAIL") or node.stage != "semantics" or name in self._tried:
            return
        self._tried.add(name)
        index = node.layer
        line = None if index is None else lane.map.of_layer(index).get(name)
        if index is None or line is None or name not in lane.raw:
            return
        rope = lane.blueprint.blocks[index].rope
        layout = fit(golden, lane.raw[name], heads_of(name, lane.blueprint, index), rope.style if rope else None)
        if layout is not None:
            proposed = Line.model_validate({"at": line.at, **layout.declared()})
            if proposed != line:
                self.found[name] = Proposal(node.name, f"{name}: {line_text(proposed)}")
