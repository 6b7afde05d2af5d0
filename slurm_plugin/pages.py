"""Pages for people, from the templates in ``templates/``. Whatever is put into one is escaped: names, comments and reasons come from others.

A page asks for nothing from elsewhere, and its content security policy holds it to that: it allows the page's own style and script by their
checksums and nothing else, so that what somebody smuggled in would neither run nor call home.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import Any

import jinja2

from slurm_plugin.render import template_folder

STYLE = "page.css"


def page(template: str, *, script: str = "", **values: Any) -> str:
    """HTML. ``script``: name of a file in ``templates/``, "" for none. Raises ``ConfigError`` where the templates are missing."""
    environment = _environment()
    style, code = _text(STYLE), _text(script) if script else ""
    return environment.get_template(template).render(
        **values, style=_trusted(style), script=_trusted(code), policy=policy(style, code)
    )


def policy(style: str, script: str = "") -> str:
    """The content security policy of a page with this style and script in it. Scripts may ask the server that the page is from, and no other."""
    words = ["default-src 'none'", f"style-src {_digest(style)}", "base-uri 'none'", "form-action 'none'"]
    if script:
        words += [f"script-src {_digest(script)}", "connect-src 'self'"]
    return "; ".join(words)


def policy_of(script: str) -> str:
    """That of a page with ``script``, a file in ``templates/``."""
    return policy(_text(STYLE), _text(script))


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _trusted(text: str) -> Any:
    from markupsafe import Markup  # jinja2 stands on it

    return Markup(text)  # noqa: S704 - a file of our own


@cache
def _text(name: str) -> str:
    return (template_folder() / name).read_text(encoding="utf-8")


def printable(value: Any) -> Any:
    """What could steer the reader's eye (control characters, right-to-left overrides) becomes a visible sign."""
    if isinstance(value, str) and type(value) is str and not value.isprintable():
        return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in value)
    return value


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(template_folder()),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        finalize=printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
