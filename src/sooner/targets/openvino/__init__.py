"""The OpenVINO CPU target: paged attention, sibling chains for trees, an exact prefix cache. `load` makes one."""

from sooner.targets.openvino.load import Files, KVPrecision, Precision, load
from sooner.targets.openvino.memory import MemoryPlan
from sooner.targets.openvino.session import OpenVINOSession
from sooner.targets.openvino.target import OpenVINOTarget

__all__ = ["Files", "KVPrecision", "MemoryPlan", "OpenVINOSession", "OpenVINOTarget", "Precision", "load"]
