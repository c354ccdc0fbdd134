"""The driver's C functions for harness/torch/launches.h: a launch multiplies tensors of the CPU.

``made = c_driver.Launches(multiply)``; ``made.driver`` is for `known.functions`, ``made.image(...)`` stands
in for `products.image`. Arguments of a kernel are a tensor map of a, which holds a's address, the number of
the product, the operands' addresses, and the workspace's address if `made.own`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from harness.dispatch.prepared import GemmImage
from harness.driver import Image

_MAP, _NUMBER, _FIRST = 0, 128, 136  # offsets of arguments in bytes
_CONFIG = 56  # bytes
_STREAM, _ATTRIBUTES, _COUNT = 4, 5, 6  # their places in a config, in words
_ATTRIBUTE = [4, *range(70, 78)]  # the words of one
CONTEXT, STREAM_ID = 0xC0, 70
_INT, _POINTER = ctypes.c_int, ctypes.c_void_p
_LAUNCH = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, ctypes.POINTER(_POINTER), _POINTER)
_MOVE = ctypes.CFUNCTYPE(_INT, ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint64)
_CURRENT = ctypes.CFUNCTYPE(_INT, ctypes.POINTER(ctypes.c_uint64))
_IDENTIFY = ctypes.CFUNCTYPE(_INT, _POINTER, ctypes.POINTER(ctypes.c_uint64))
_CAPTURING = ctypes.CFUNCTYPE(_INT, _POINTER, ctypes.POINTER(_INT))
_OF = ctypes.CFUNCTYPE(ctypes.c_uint64, _POINTER)


class Launches:
    """Do what the driver would: set `fails`, `context`, `stream`, `capturing` and `own` to change it.

    `launched` holds the stream and the workspace of each launch, `errors` what went wrong in one.
    """

    def __init__(self, torch: Any, multiply: Callable[..., None]) -> None:
        self._torch, self._multiply = torch, multiply
        self._products: list[Any] = []
        self.launched: list[tuple[int, int]] = []
        self.errors: list[BaseException] = []
        self._attributes: list[Any] = []  # what configs pointed to when images were made
        self.fails = self.capturing = self.own = False
        self.context, self.stream = CONTEXT, STREAM_ID
        self.rooms: dict[int, int] = {}  # addresses by the numbers of streams: what Python knows
        self.told: list[Callable[[], None]] = []
        self._functions = (
            _LAUNCH(self._launch), _MOVE(self._move), _CURRENT(self._current), _IDENTIFY(self._identify),
            _CAPTURING(self._is_capturing), _OF(lambda at: self.stream + 1000),
        )  # fmt: skip

    @property
    def driver(self) -> Any:
        from harness.torch import known

        return known.Driver(*(ctypes.cast(f, _POINTER).value for f in self._functions))

    def images_go(self) -> None:
        """Overwrite what the images pointed to."""
        for original in self._attributes:
            ctypes.memset(original, 0, ctypes.sizeof(original))

    def watch(self, told: Callable[[], None]) -> bool:
        """Stand in for `Workspaces.watch`."""
        if told in self.told:
            return False
        self.told.append(told)
        return True

    def image(
        self,
        a: Any,
        b: Any,
        out: Any,
        precision: str,
        alpha: float,
        beta: float,
        bias: Any,
        rows: bool,
        activation: str = "",
    ) -> Any:
        if out.dim() == 3:
            return None
        given = [x for x in (a, b, out, bias) if x is not None]
        number = len(self._products)
        shapes = [(x.dtype, tuple(x.shape), x.stride()) for x in given]
        aligned = sum((x.data_ptr() % 16 == 0) << i for i, x in enumerate(given[:3]))
        self._products.append((shapes, precision, alpha, beta, rows, activation, 0xF0 + aligned))
        offsets = [_MAP, _NUMBER, *(_FIRST + 8 * i for i in range(len(given) + self.own))]
        memory = bytearray(offsets[-1] + 8)
        memory[_NUMBER : _NUMBER + 8] = number.to_bytes(8, "little")
        config = (ctypes.c_uint64 * (_CONFIG // 8))()
        self._attributes.append((ctypes.c_uint64 * len(_ATTRIBUTE))(*_ATTRIBUTE))
        config[_ATTRIBUTES], config[_COUNT] = ctypes.addressof(self._attributes[-1]), 1
        launch = Image(
            function=0xF0 + aligned,
            context=CONTEXT,
            config=SimpleNamespace(getPtr=lambda: ctypes.addressof(config)),
            memory=bytes(memory),
            offsets=tuple(offsets),
        )
        room = self.rooms.get(self.stream) if self.own and not self.capturing else None
        return GemmImage(
            launch=launch,
            pointers=tuple((_FIRST + 8 * i, i) for i in range(len(given))),
            maps=((_MAP, 0),) if aligned & 1 else (),
            aligned=aligned,
            own=offsets[-1] if self.own else None,
            room=None if room is None else (self.stream, room + aligned),
            watch=self.watch,
        )

    def _launch(self, config: Any, function: Any, arguments: Any, extra: Any) -> int:
        if self.fails:
            return 700
        try:
            words = ctypes.cast(config, ctypes.POINTER(ctypes.c_uint64))
            stream, attribute = words[_STREAM], ctypes.POINTER(ctypes.c_uint64)
            given = ctypes.cast(ctypes.c_void_p(words[_ATTRIBUTES]), attribute)[: len(_ATTRIBUTE)]
            assert given == _ATTRIBUTE and words[_COUNT] & 0xFFFFFFFF == 1
            words = [ctypes.c_uint64.from_address(arguments[i]).value for i in range(2)]
            mapped, number = words
            shapes, precision, alpha, beta, rows, activation, wanted = self._products[number]
            assert function == wanted and not extra
            count = len(shapes)
            at = [ctypes.c_uint64.from_address(arguments[2 + i]).value for i in range(count + self.own)]
            assert mapped == (at[0] if at[0] % 16 == 0 else 0), "the tensor map is of another address"
            assert arguments[0] % 64 == 0, "tensor maps lie at multiples of 64 bytes"
            tensors = [self._tensor(address, *shape) for address, shape in zip(at, shapes, strict=False)]
            bias = tensors[3] if count > 3 else None
            self._multiply(*tensors[:3], alpha, beta, precision, bias, activation, rows)
            self.launched.append((stream - 1000, at[-1] if self.own else 0))
        except BaseException as e:
            self.errors.append(e)
            return 1
        return 0

    def _tensor(self, address: int, dtype: Any, shape: Any, strides: Any) -> Any:
        last = sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
        memory = (ctypes.c_char * ((last + 1) * dtype.itemsize)).from_address(address)
        return self._torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)

    def _move(self, at: Any, address: int) -> int:
        at[0] = address
        return 0 if address % 16 == 0 else 1

    def _current(self, to: Any) -> int:
        to[0] = self.context
        return 0

    def _identify(self, stream: int, to: Any) -> int:
        to[0] = stream - 1000
        return 0

    def _is_capturing(self, stream: int, to: Any) -> int:
        to[0] = int(self.capturing)
        return 0
