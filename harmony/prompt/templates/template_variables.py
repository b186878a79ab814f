"""Finds the variables that a chat template reads from outside: those that it may read before it has set them.

jinja2's own `find_undeclared_variables` also reports a variable that is set in each branch before it is read there.
A client could set such a variable in vain.
"""

from collections.abc import Iterable

from jinja2 import nodes

_Names = frozenset[str]
_SCOPES = (nodes.FilterBlock, nodes.Block, nodes.Scope, nodes.ScopedEvalContextModifier)
"""Nodes around a body; what the body sets is gone after it."""


def find_read_variables(template: nodes.Template) -> frozenset[str]:
    """Returns the names that some path through the template reads before it sets them."""
    finder = _ReadFinder()
    finder.visit_all(template.body, frozenset())
    return frozenset(finder.read)


class _ReadFinder:
    """Walks a template in the order of its execution. `read` are the names that were read before they were set."""

    def __init__(self) -> None:
        self.read: set[str] = set()

    def visit_all(self, body: Iterable[nodes.Node], known: _Names) -> _Names:
        """Visits nodes in order. Returns the names that are set after them; `known` are set before."""
        for node in body:
            known = self._visit(node, known)
        return known

    def _visit(self, node: nodes.Node, known: _Names) -> _Names:
        match node:
            case nodes.Name():
                return self._visit_name(node, known)
            case nodes.Assign():
                return self._visit(node.target, self._visit(node.node, known))
            case nodes.AssignBlock():
                self.visit_all(node.body, known)
                return self._visit(node.target, known)
            case nodes.If():
                return self._visit_if(node, known)
            case nodes.Macro():
                self._visit_macro(node, known)
                return known | {node.name}
            case nodes.For():
                self._visit_for(node, known)
            case nodes.CallBlock():
                self._visit(node.call, known)
                self._visit_macro(node, known)
            case nodes.With():
                self.visit_all(node.values, known)
                self.visit_all(node.body, self.visit_all(node.targets, known))
            case _:
                after = self.visit_all(node.iter_child_nodes(), known)
                return known if isinstance(node, _SCOPES) else after
        return known

    def _visit_name(self, node: nodes.Name, known: _Names) -> _Names:
        if node.ctx == "load":
            if node.name not in known:
                self.read.add(node.name)
            return known
        return known | {node.name}

    def _visit_if(self, node: nodes.If, known: _Names) -> _Names:
        """A name is set after the branches if each of them sets it."""
        known = self._visit(node.test, known)
        ends = [self.visit_all(node.body, known)]
        for branch in node.elif_:
            known = self._visit(branch.test, known)
            ends.append(self.visit_all(branch.body, known))
        ends.append(self.visit_all(node.else_, known))
        return frozenset.intersection(*ends)

    def _visit_for(self, node: nodes.For, known: _Names) -> None:
        """Reads a loop: a variable that its body sets is gone after each turn."""
        self._visit(node.iter, known)
        inner = self._visit(node.target, known) | {"loop"}
        if node.test is not None:
            self._visit(node.test, inner)
        self.visit_all(node.body, inner)
        self.visit_all(node.else_, known)

    def _visit_macro(self, node: nodes.Macro | nodes.CallBlock, known: _Names) -> None:
        self.visit_all(node.defaults, known)
        inner = self.visit_all(node.args, known) | {"varargs", "kwargs", "caller"}
        self.visit_all(node.body, inner)
