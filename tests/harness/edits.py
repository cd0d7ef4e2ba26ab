"""Manifests with one field changed, as a forger or an accident leaves them."""

from __future__ import annotations

import json
from typing import Any

from scoreshield.manifest.schema import Manifest, to_json


def edited(manifest: Manifest, place: str, value: Any) -> str:
    """The text of a manifest with ``value`` at a dotted place."""
    content = json.loads(to_json(manifest))
    *path, last = place.split(".")
    inner = content
    for name in path:
        inner = inner[name]
    inner[last] = value
    return json.dumps(content)
