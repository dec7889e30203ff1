"""Docstrings are written as Sphinx reads them, like PyTorch's; this turns them into Markdown for mkdocstrings."""

import re
import textwrap
from typing import Any

import griffe

BLOCK_MATH = re.compile(r"^( *)\.\. math::\n((?:\1 +.*\n?|\n)+)", re.M)
INLINE_MATH = re.compile(r":math:`([^`]+)`")
ROLE = re.compile(r":(?:class|func|meth|mod|data):`(~?)([^`]+)`")
LITERAL = re.compile(r"::\n\n((?: {4}.*\n|\n)+)")
VERBATIM = re.compile(r"(```.+?```|``[^`]+``|`[^`]+`|\\\(.+?\\\)|\\\[.+?\\\])", re.S)
EXAMPLE = re.compile(r"^>>> ", re.M)


class Sphinx(griffe.Extension):
    """Passes every docstring through :func:`markdown`, and drops those of modules."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.is_module:
            obj.docstring = None  # for readers of the source
        elif obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """Roles, formulas, ``G*H`` outside code, and examples from the first prompt to the end."""
    example = EXAMPLE.search(text)
    end = example.start() if example else len(text)
    prose = ROLE.sub(name, INLINE_MATH.sub(r"\\(\1\\)", BLOCK_MATH.sub(display, LITERAL.sub(literal, text[:end]))))
    parts = VERBATIM.split(prose)
    parts[::2] = [part.replace("*", r"\*") for part in parts[::2]]
    return "".join(parts) + (f"```pycon\n{text[end:].rstrip()}\n```\n" if example else "")


def name(found: re.Match) -> str:
    return f"`{found[2].rsplit('.', 1)[-1] if found[1] else found[2]}`"


def literal(found: re.Match) -> str:
    """The block of code that a double colon announces."""
    return f":\n\n```python\n{textwrap.dedent(found[1]).strip()}\n```\n\n"


def display(found: re.Match) -> str:
    """Aligned where its lines ask for it, as Sphinx has it."""
    indent, formula = found[1], textwrap.dedent(found[2]).strip()
    if "&" in formula or r"\\" in formula:
        formula = f"\\begin{{aligned}}\n{formula}\n\\end{{aligned}}"
    return textwrap.indent(f"\\[\n{formula}\n\\]\n\n", indent)
