"""HTML and SVG as trees, so that no text is ever taken for markup."""

from xml.etree import ElementTree

Child = ElementTree.Element | str | None


def element(tag: str, *children: Child, **attributes: str | float | None) -> ElementTree.Element:
    """``element("a", "text", href="#x", class_="y", aria_label="…")``. What is None is left out."""
    node = ElementTree.Element(tag)
    for name, value in attributes.items():
        if value is not None:
            node.set(name.rstrip("_").replace("_", "-"), str(value))
    last: ElementTree.Element | None = None
    for child in children:
        if isinstance(child, str):
            if last is None:
                node.text = (node.text or "") + child
            else:
                last.tail = (last.tail or "") + child
        elif child is not None:
            node.append(child)
            last = child
    return node


def document(root: ElementTree.Element) -> str:
    return "<!doctype html>\n" + ElementTree.tostring(root, encoding="unicode", method="html")
