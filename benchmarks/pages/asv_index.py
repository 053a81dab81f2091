"""Changes asv's own page after asv has written it: links to the ladder's pages, scripts from the
site instead of the network, and the direction of each change in words."""

import re
import shutil
from pathlib import Path

FOLDER = Path(__file__).parent
VENDOR = FOLDER / "vendor"
DIRECTION = "direction.js"

_REMOTE = re.compile(r'<(?:script|link)\b[^>]*?(?:src|href)="https://[^"]*/([^"/]+)"[^>]*>')
_VERSION = re.compile(r"-[\d.]+(?=\.)|\.min(?=\.)")
_LAST_LINK = re.compile(r'<li id="nav-li-regressions">.*?</li>')
_HEAD_END = re.compile(r"(?=</head>)")

_LINKS = "".join(
    f'\n        <li><a href="ladder/index.html#{section}">{label}</a></li>'
    for section, label in (
        ("ladder", "Ladder"),
        ("roofline", "Roofline"),
        ("shapes", "Shapes"),
        ("compiler", "Compiler"),
    )
)
# Browsers let a page that was opened from a file read no other file, so asv's stays empty.
_HEAD = f"""<script>
      if (location.protocol === "file:") location.replace("ladder/index.html");
    </script>
    <script src="{DIRECTION}"></script>
  """


def adapt(html: Path) -> None:
    """Change asv's page in the folder ``html``; LookupError if it is not as expected."""
    index = html / "index.html"
    text = index.read_text()
    local = {_stem(path.name): path for path in VENDOR.iterdir()}
    copied = html / "vendor"
    copied.mkdir(exist_ok=True)

    def from_site(tag: re.Match[str]) -> str:
        path = local.get(_stem(tag[1]))
        if path is None:
            raise LookupError(f"asv's page loads {tag[1]}, which {VENDOR} lacks")
        shutil.copy(path, copied)
        if path.suffix == ".css":
            return f'<link rel="stylesheet" href="vendor/{path.name}">'
        return f'<script src="vendor/{path.name}">'

    text = _REMOTE.sub(from_site, text)
    text = _insert(text, _LAST_LINK, _LINKS)
    text = _insert(text, _HEAD_END, _HEAD)
    index.write_text(text)
    shutil.copy(VENDOR / "LICENSES.txt", copied)
    shutil.copy(FOLDER / DIRECTION, html)


def _stem(name: str) -> str:
    """The name without a version and without ``.min``."""
    return _VERSION.sub("", name)


def _insert(text: str, after: re.Pattern[str], addition: str) -> str:
    found = after.search(text)
    if found is None:
        raise LookupError(f"asv's page has no {after.pattern}")
    return text[: found.end()] + addition + text[found.end() :]
