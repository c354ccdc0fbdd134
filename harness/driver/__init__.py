"""The parts of the CUDA driver API that harness needs. No other package imports ``cuda.bindings.driver``.

    with Context(Device.open(0)) as context:
        stream = Stream(context)
        buffer = Buffer(context, array.nbytes)
        buffer.upload(array, stream)
        launch = Module(context, cubin).function("scale").prepare(grid, block, [buffer, np.int32(n)])
        launch(stream)
        buffer.download(array, stream)

Importing it needs neither a GPU nor the CUDA packages; the first use does.
"""

from harness.driver.api import driver_version
from harness.driver.context import Context
from harness.driver.device import Device
from harness.driver.gate import Gate
from harness.driver.graph import Graph, GraphLifetime, outside_captures
from harness.driver.launch import Image, PreparedLaunch, Struct
from harness.driver.memory import (
    Buffer,
    DeviceArray,
    PinnedBuffer,
    device_of,
    fill_u32,
    stream_memory,
)
from harness.driver.module import Function, FunctionAttributes, Module
from harness.driver.stream import BorrowedStream, Event, Stream

__all__ = [
    "BorrowedStream",
    "Buffer",
    "Context",
    "Device",
    "DeviceArray",
    "Event",
    "Function",
    "FunctionAttributes",
    "Gate",
    "Graph",
    "GraphLifetime",
    "Image",
    "Module",
    "PinnedBuffer",
    "PreparedLaunch",
    "Stream",
    "Struct",
    "device_of",
    "driver_version",
    "fill_u32",
    "outside_captures",
    "stream_memory",
]
