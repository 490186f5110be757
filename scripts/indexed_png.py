"""Pictures as small PNG files: a palette instead of full colour."""

import struct
import zlib
from typing import Final

import numpy as np

_DROPPED_BITS: Final = 2


def indexed_png(colours: np.ndarray) -> bytes:
    """A picture (height x width x 3, bytes) as PNG with a palette of its most frequent colours."""
    height, width, _ = colours.shape
    coarse = (colours >> _DROPPED_BITS).astype(np.int32)
    codes = (coarse[:, :, 0] << 16) | (coarse[:, :, 1] << 8) | coarse[:, :, 2]
    values, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    kept = np.argsort(-counts)[:256]
    parts = np.stack([values >> 16, (values >> 8) & 0xFF, values & 0xFF], axis=1)
    distance = ((parts[:, None, :] - parts[kept][None, :, :]) ** 2).sum(axis=2)
    indexes = distance.argmin(axis=1)[inverse].reshape(height, width).astype(np.uint8)
    palette = (parts[kept] * 255 // (255 >> _DROPPED_BITS)).astype(np.uint8).tobytes()
    rows = np.concatenate([np.zeros((height, 1), np.uint8), indexes], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(rows, 9)))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, data) for kind, data in (*chunks, (b"IEND", b""))
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
