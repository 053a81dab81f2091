"""docs/errors.md has every message of the package, and no message that is no more."""

import ast
import re
from pathlib import Path

import pytest

import sgemm
from sgemm import causes

PACKAGE = Path(sgemm.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "errors.md").read_text(encoding="utf-8")
KINDS = {
    name
    for name in dir(sgemm)
    if isinstance(kind := getattr(sgemm, name), type) and issubclass(kind, sgemm.SgemmError)
}


def template(node):
    """The text of a message, with "…" for what varies."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(template, node.values))
    return "…"


def raised(source):
    """The first lines of the messages of the errors that a module makes, without those that are
    causes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
            line = template(node.args[0]).partition("\n")[0]
            if re.search(r"\w", line):
                yield line


def tabled(page):
    """The messages in the tables that have a column of them, each with its cause and repair."""
    for table in page.split("| message | cause | repair |\n")[1:]:
        for line in table.split("\n\n")[0].splitlines()[1:]:
            yield re.fullmatch(r"\| `(.+)` \| (.+) \| (.+) \|", line).groups()


def test_every_message_has_its_cause_and_repair():
    in_code = {line for path in PACKAGE.rglob("*.py") for line in raised(path.read_text("utf-8"))}
    on_page = [message for message, _, _ in tabled(PAGE)]
    assert len(in_code) > 40
    assert len(on_page) == len(set(on_page))
    assert in_code - set(on_page) == set(), "docs/errors.md lacks these"
    assert set(on_page) - in_code == set(), "docs/errors.md has these, which nothing raises"


def test_every_kind_of_error_is_explained():
    for name in KINDS - {"SgemmError"}:
        (base,) = re.findall(rf"^\| `{name}` \| `(\w+)` \|", PAGE, re.MULTILINE)
        kind = getattr(sgemm, name)
        assert base in {parent.__name__ for parent in kind.__mro__[1:]}


@pytest.mark.parametrize("major", [12, 13])
def test_the_commands_that_install_are_those_that_the_doctor_names(major):
    assert f"`{causes.install_for(major)}`" in " ".join(PAGE.split())


def test_a_message_that_is_not_listed_is_noticed():
    source = 'raise ArgumentError(f"new: {x!r} is " "wrong") from error\nraise MissingError(cause)'
    assert list(raised(source)) == ["new: … is wrong"]
