"""Amazon EC2 as a provider. ``cloud.py`` is the provider; ``client.py`` alone imports boto3."""

from __future__ import annotations
