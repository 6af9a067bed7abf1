"""The generated message packages equal the released ones on the wire."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed; run make install")

HASHES = json.loads((Path(__file__).parent / "type_hashes.json").read_text())

CONSTANTS = {
    "autoware_perception_msgs/msg/ObjectClassification": {
        "UNKNOWN": 0,
        "CAR": 1,
        "TRUCK": 2,
        "BUS": 3,
        "TRAILER": 4,
        "MOTORCYCLE": 5,
        "BICYCLE": 6,
        "PEDESTRIAN": 7,
        "ANIMAL": 8,
        "HAZARD": 9,
        "OVER_DRIVABLE": 10,
        "UNDER_DRIVABLE": 11,
    },
    "autoware_perception_msgs/msg/DetectedObjectKinematics": {
        "UNAVAILABLE": 0,
        "SIGN_UNKNOWN": 1,
        "AVAILABLE": 2,
    },
    "autoware_perception_msgs/msg/Shape": {"BOUNDING_BOX": 0, "CYLINDER": 1, "POLYGON": 2},
}

# What the middleware itself announces for each type, as any other ROS 2 process would see it.
ANNOUNCE = """
import importlib, json, sys
import rclpy
rclpy.init()
node = rclpy.create_node("announcer")
found = {}
for number, name in enumerate(json.loads(sys.argv[1])):
    package, _, message = name.split("/")
    kind = getattr(importlib.import_module(package + ".msg"), message)
    topic = f"/t{number}"
    publisher = node.create_publisher(kind, topic, 1)
    found[name] = str(node.get_publishers_info_by_topic(topic)[0].topic_type_hash)
print(json.dumps(found))
rclpy.shutdown()
"""

PUBLISH = """
import time
import rclpy
from vision_msgs.msg import Detection3D, Detection3DArray, ObjectHypothesisWithPose
rclpy.init()
node = rclpy.create_node("publisher")
publisher = node.create_publisher(Detection3DArray, "/detections", 10)
result = ObjectHypothesisWithPose()
result.hypothesis.class_id, result.hypothesis.score = "car", 0.5
detection = Detection3D(results=[result], id="7")
detection.bbox.size.x = 4.5
message = Detection3DArray(detections=[detection] * 100)
message.header.frame_id = "lidar"
while True:
    publisher.publish(message)
    time.sleep(0.1)
"""

RECEIVE = """
import time
import rclpy
from vision_msgs.msg import Detection3DArray
rclpy.init()
node = rclpy.create_node("subscriber")
got = []
node.create_subscription(Detection3DArray, "/detections", got.append, 10)
deadline = time.monotonic() + 240
while not got and time.monotonic() < deadline:
    rclpy.spin_once(node, timeout_sec=0.2)
last = got[0].detections[-1]
hypothesis = last.results[0].hypothesis
print(len(got[0].detections), got[0].header.frame_id, last.id, last.bbox.size.x,
      hypothesis.class_id, hypothesis.score)
rclpy.shutdown()
"""


def test_type_hashes_equal_those_of_the_released_packages(ros_env):
    done = subprocess.run(
        [sys.executable, "-c", ANNOUNCE, json.dumps(list(HASHES))],
        env=ros_env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == HASHES


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_equal_those_of_the_released_packages(name):
    # A type hash covers fields only, so a wrong constant would go unnoticed there.
    package, _, message = name.split("/")
    kind = getattr(importlib.import_module(f"{package}.msg"), message)
    got = {key: getattr(kind, key) for key in dir(kind) if key.isupper()}
    got.pop("SLOT_TYPES", None)
    assert got == CONSTANTS[name]


@pytest.mark.nodes
def test_detections_pass_from_one_process_to_another(ros_env):
    publisher = subprocess.Popen([sys.executable, "-c", PUBLISH], env=ros_env)
    try:
        received = subprocess.run(
            [sys.executable, "-c", RECEIVE],
            env=ros_env,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert publisher.poll() is None
    finally:
        publisher.kill()
        publisher.wait()
    assert received.returncode == 0, received.stderr
    assert received.stdout.split() == ["100", "lidar", "7", "4.5", "car", "0.5"]


def test_a_second_generation_finds_everything_up_to_date():
    build = Path(__file__).parents[2] / "interfaces" / "build.py"
    if sys.prefix == sys.base_prefix:
        pytest.skip("messages are generated into a virtual environment; this is none")
    done = subprocess.run([sys.executable, build], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "up to date" in done.stdout
