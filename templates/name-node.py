#!/usr/bin/env python3
"""At first boot: which node this machine is, from its own tags on the metadata service. Writes node.json and prints the name.

The place among the nodes of its launch comes a moment after the launch itself, so it is waited for. Standard library only.
"""

# ruff: noqa: PTH105, PTH123, S310

import http.client
import json
import os
import re
import sys
import time
import urllib.error
import urllib.request

BASE = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/")
PATIENCE = float(os.environ.get("SPOTBURST_NAME_PATIENCE", "600"))
# The link-local service is never behind a proxy.
OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def fetch(path, method="GET", headers=None):
    request = urllib.request.Request(BASE + path, method=method, headers=headers or {})
    with OPEN(request, timeout=5) as answer:
        return answer.read().decode()


def read_tags():
    token = fetch("/latest/api/token", "PUT", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    headers = {"X-aws-ec2-metadata-token": token}
    names = fetch("/latest/meta-data/tags/instance", headers=headers).split("\n")
    return {
        name: fetch("/latest/meta-data/tags/instance/" + name, headers=headers)
        for name in names
        if name.startswith("spotburst-")
    }


def expand(text):
    """Names of a Slurm hostlist, in order."""
    found = []
    for term in re.findall(r"(?:\[[^]]*\]|[^,\[])+", text):
        names = [""]
        for literal, ranges in re.findall(r"([^\[]*)(?:\[([^]]*)\])?", term):
            tails = [""]
            if ranges:
                tails = []
                for part in ranges.split(","):
                    first, _, last = part.partition("-")
                    tails += [str(n).zfill(len(first)) for n in range(int(first), int(last or first) + 1)]
            names = [name + literal + tail for name in names for tail in tails]
        found += names
    return found


def node_of(tags):
    """The node's name; None while the tags do not tell it."""
    if tags.get("spotburst-node"):
        return tags["spotburst-node"]
    try:
        place = sum(int(tags[f"spotburst-digit-{d}"]) * 10**d for d in range(int(tags["spotburst-digits"])))
    except KeyError:
        return None
    pieces = sorted((k for k in tags if k.startswith("spotburst-nodes-")), key=lambda k: int(k.rsplit("-", 1)[1]))
    return expand("".join(tags[k] for k in pieces))[place]


def main(template, target):
    until = time.monotonic() + PATIENCE
    while True:
        try:
            tags = read_tags()
            node = node_of(tags)
            why = "the tags do not tell yet: " + ", ".join(sorted(tags))
        except (OSError, ValueError, IndexError, http.client.HTTPException) as error:
            tags, node, why = {}, None, f"{BASE}: {error}"
        if node:
            break
        if time.monotonic() >= until:
            print("spotburst: this machine's node is unknown: " + why, file=sys.stderr)
            return 1
        time.sleep(0.5)
    with open(template) as file:
        settings = json.load(file)
    settings.update(node=node, offering=tags.get("spotburst-offering", ""))
    draft = target + ".new"
    with open(draft, "w") as file:
        json.dump(settings, file, indent=1, sort_keys=True)
        file.write("\n")
    os.replace(draft, target)
    print(node)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
