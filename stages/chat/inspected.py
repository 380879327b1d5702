"""Which strings does a chat template look for in the messages that it is given?"""

import re

from jinja2 import Environment, nodes

SEARCHING_METHODS = {
    *("split", "rsplit", "partition", "rpartition", "startswith", "endswith"),
    *("find", "rfind", "index", "count", "replace", "removeprefix", "removesuffix"),
}
_GENERATION = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")


def inspected_constants(template: str) -> tuple[str, ...]:
    """String constants that the template searches for (`in`, `.split`, `.startswith`, ...), sorted.

    White space and single characters are left out, which cut nothing apart, and bare words, which
    are keys of messages (`'tool_calls' in message`).
    """
    source = _GENERATION.sub("", template)
    tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(source)
    found: set[str] = set()
    for compare in tree.find_all(nodes.Compare):
        if any(operand.op in ("in", "notin") for operand in compare.ops):
            found |= _strings(compare.expr)
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr in SEARCHING_METHODS:
            for argument in call.args:
                found |= _strings(argument)
    return tuple(
        sorted(text for text in found if len(text.strip()) > 1 and not text.isidentifier())
    )


def _strings(node: nodes.Node) -> set[str]:
    return {node.value} if isinstance(node, nodes.Const) and isinstance(node.value, str) else set()
