"""The one door to a cloud: the provider protocol, and aws, gcp, azure and local behind it."""

from __future__ import annotations
