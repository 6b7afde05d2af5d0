"""EC2 for ``bench_resume``: moto and the layer before it, in a process of its own, the same for every side.

moto looks through all that it has for each machine that it makes or describes: 7 s for a thousand. Here it finds them at once.
DynamoDB, which the reference writes to, always answers that all is written.

``python -m tests.bench.resume_server SECONDS`` makes each call take that long besides. It prints its endpoint, image and subnet as one line of
JSON, then, for each line of its standard input: ``calls`` so far as [Unix seconds of the answer, name], how many ``machines`` there are, and how
many ``nodes`` their tags tell.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from typing import Any
from xml.etree import ElementTree as ET

import boto3

from slurm_plugin.cloud.aws import names
from tests.fixtures.moto_ec2 import NAMESPACE, REGION, Answer, Ec2Server, Params, Pool, fleet_answer

TYPE = "g5.xlarge"
ZONE = f"{REGION}a"
TEMPLATE = "bench-q-c"
"""The launch template that the reference expects, by its names for cluster, queue and resource."""


class QuickEc2(Ec2Server):
    """Answers within a millisecond a machine."""

    def __init__(self) -> None:
        self.answered: list[tuple[float, str]] = []
        super().__init__()
        backend = self.backend
        for image in list(backend.amis)[1:]:
            del backend.amis[image]
        backend.get_instance = backend.get_instance_by_id = self._instance

    def _instance(self, instance_id: str) -> Any:
        newest = reversed(self.backend.reservations.values())
        return next((i for r in newest for i in r.instances if i.id == instance_id), None)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        target = environ.get("HTTP_X_AMZ_TARGET", "")
        if not target:
            return super().__call__(environ, start_response)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        # A tenth of what EC2 takes.
        time.sleep(self.faults.latency / 10)
        self.answered.append((time.time(), target.split(".")[-1]))
        body = b'{"UnprocessedItems": {}}'
        start_response("200 OK", [("Content-Type", "application/x-amz-json-1.0"), ("Content-Length", str(len(body)))])
        return [body]

    def _answer(self, action: str, params: Params, environ: dict[str, Any]) -> Answer:
        answer = super()._answer(action, params, environ)
        self.answered.append((time.time(), action))
        return answer

    def _create_fleet(self, params: Params, environ: dict[str, Any]) -> Answer:
        """All of it, at once, from the one pool that there is; moto makes a spot request and a reservation for each machine."""
        told = "TagSpecification.1.Tag."
        numbers = [k.split(".")[3] for k in params if k.startswith(told) and k.endswith(".Key")]
        labels = {params[f"{told}{n}.Key"]: params[f"{told}{n}.Value"] for n in numbers}
        made = self.backend.run_instances(
            next(iter(self.backend.amis)),
            int(params["TargetCapacitySpecification.TotalTargetCapacity"]),
            b"",
            [],
            instance_type=TYPE,
            is_instance_type_default=False,
            subnet_id=self.subnet(ZONE),
            region_name=REGION,
            instance_market_options={"MarketType": "spot"},
            block_device_mappings=[],
            tags={"instance": labels},
        ).instances
        pool: Pool = TYPE, self.subnet(ZONE), "spot"
        for instance in made:
            self.pools[instance.id], self.born[instance.id] = pool, time.time()
        return 200, fleet_answer([(pool, i.id) for i in made], [], "spot")

    def _describe(self, params: Params, environ: dict[str, Any]) -> Answer:
        """By id, with what the reference reads; moto looks through all its machines for each."""
        wanted = {v for k, v in params.items() if k.startswith("InstanceId.")}
        if not wanted:
            return super()._describe(params, environ)
        root = ET.Element("DescribeInstancesResponse", xmlns=NAMESPACE)
        group = ET.SubElement(ET.SubElement(ET.SubElement(root, "reservationSet"), "item"), "instancesSet")
        for instance in self.instances():
            if instance.id not in wanted:
                continue
            item, dns = ET.SubElement(group, "item"), f"ip-{instance.private_ip.replace('.', '-')}.internal"
            for name, text in (
                ("instanceId", instance.id),
                ("privateIpAddress", instance.private_ip),
                ("privateDnsName", dns),
                ("launchTime", instance.launch_time.strftime("%Y-%m-%dT%H:%M:%S.000Z")),
            ):
                ET.SubElement(item, name).text = text
            nic = ET.SubElement(ET.SubElement(item, "networkInterfaceSet"), "item")
            ET.SubElement(nic, "privateIpAddress").text = instance.private_ip
            ET.SubElement(nic, "privateDnsName").text = dns
            place = ET.SubElement(nic, "attachment")
            ET.SubElement(place, "deviceIndex").text = ET.SubElement(place, "networkCardIndex").text = "0"
        return 200, ET.tostring(root)


def main() -> None:
    """Serve until standard input ends."""
    with QuickEc2() as server:
        image, subnet = next(iter(server.backend.amis)), server.subnet(ZONE)
        boto3.client("ec2", endpoint_url=server.endpoint, region_name=REGION).create_launch_template(
            LaunchTemplateName=TEMPLATE, LaunchTemplateData={"ImageId": image}
        )
        server.answered.clear()
        server.faults.latency = float(sys.argv[1])
        print(json.dumps({"endpoint": server.endpoint, "image": image, "subnet": subnet}), flush=True)
        for _ in sys.stdin:
            found = [names.read(server.tags(i)) for i in server.instances()]
            nodes = {name[1] for name in found if name}
            print(json.dumps({"calls": server.answered, "machines": len(found), "nodes": len(nodes)}), flush=True)


if __name__ == "__main__":
    main()
