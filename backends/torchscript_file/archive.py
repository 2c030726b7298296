"""A zip file whose stored records are mapped, not read.

PyTorch stores tensors uncompressed and aligned to 64 bytes, so a view of the mapping is the tensor,
and processes that map the same file share its pages.
"""

import mmap
import os
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.torchscript_file.errors import (
    DamagedFileError,
    NoTorchScriptError,
    TorchScriptFileError,
)

Bytes = npt.NDArray[np.uint8]
# Is given a file's bytes before anything is made of them, to refuse them by raising.
Check = Callable[[Bytes], None]

# APPNOTE.TXT 4.3.7: what precedes each record's data; it ends with the lengths of two more fields.
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_LOCAL_MAGIC = b"PK\3\4"
# No text of a DLRM comes near; more is a bomb.
_MOST_TEXT_BYTES = 64 << 20
_DAMAGED = "is damaged: its size or checksum is another than the file says"
_CRC_STEP_BYTES = 16 << 20
_LINE_BYTES = 64
_NO_RESERVE = 0x4000  # MAP_NORESERVE, which Python has from 3.13 on


def map_private(descriptor: int) -> mmap.mmap:
    """Map a whole file, shared until it is written to: the writer gets a page of its own.

    Neither the file nor another process sees what is written. Raises OSError or ValueError.
    """
    # Without a reservation: the file may be larger than the memory, and few pages are ever written.
    flags = mmap.MAP_PRIVATE | (_NO_RESERVE if sys.platform == "linux" else 0)
    return mmap.mmap(descriptor, 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def read_whole(descriptor: int) -> Bytes:
    """Return a whole file's bytes in memory that only this process has.

    Raises OSError, or ValueError if the file changes meanwhile: the bytes may be of two states.
    """
    before = os.fstat(descriptor)
    memory = np.empty(before.st_size + _LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % _LINE_BYTES  # rows lie in cache lines as they do in the file
    data = memory[start : start + before.st_size]
    with open(descriptor, "rb", closefd=False) as file:  # a descriptor has no path
        count = file.readinto(data.data)
    after = os.fstat(descriptor)
    if (count, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ValueError("it was written to while it was read; load it again")
    return data


def bytes_of(descriptor: int, *, copy: bool) -> Bytes:
    """Return a whole file's bytes: mapped as ``map_private`` does, or as ``read_whole`` does."""
    return read_whole(descriptor) if copy else np.frombuffer(map_private(descriptor), np.uint8)


class Archive:
    """The records of one TorchScript file, by their names below its top folder."""

    def __init__(self, path: Path, check: Check | None = None, *, copy: bool = False) -> None:
        """Map the file at ``path`` and ``check`` it; what is written to ``bytes`` stays in here.

        With ``copy`` it is read instead: what becomes of the file afterwards is no matter.
        Opened once: what is checked is what is read. Raises TorchScriptFileError, or what
        ``check`` does.
        """
        self.path = path
        self.kind = "torch.export program" if path.suffix == ".pt2" else "TorchScript file"
        try:
            with path.open("rb") as file:
                self.bytes = bytes_of(file.fileno(), copy=copy)
                if check:
                    check(self.bytes)
                with zipfile.ZipFile(file) as archive:
                    infos = archive.infolist()
        except FileNotFoundError as error:
            raise NoTorchScriptError(f"{path} does not exist: the model is incomplete") from error
        except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError) as error:
            raise NoTorchScriptError(f"{path} is no {self.kind}: {error}") from error
        self._records = _below_top(path, infos)

    def names(self) -> Iterator[str]:
        """Yield every record's name, without the top folder."""
        yield from self._records

    def read(self, name: str, most_bytes: int = _MOST_TEXT_BYTES) -> bytes:
        """Return a small record, inflated if need be, its checksum checked.

        Raises TorchScriptFileError for one that is absent, damaged or larger than ``most_bytes``.
        """
        info = self._info(name)
        if info.file_size > most_bytes:
            raise self._error(name, f"has {info.file_size} bytes, more than {most_bytes}")
        data: bytes = self._packed(info).tobytes()
        if info.compress_type == zipfile.ZIP_DEFLATED:
            data = self._inflate(info, data)
        elif info.compress_type != zipfile.ZIP_STORED:
            raise self._error(name, f"is compressed by method {info.compress_type}")
        if len(data) != info.file_size or zlib.crc32(data) != info.CRC:
            raise self._damaged(name, _DAMAGED)
        return data

    def view(self, name: str) -> Bytes:
        """Return a stored record's bytes, a read-only view of the mapping.

        Raises TorchScriptFileError. The checksum is not looked at: that would read the whole file.
        """
        info = self._info(name)
        if info.compress_type != zipfile.ZIP_STORED:
            raise self._error(name, "is compressed; tensors must be stored as they are")
        if info.compress_size != info.file_size:
            raise self._error(name, "is stored, but its two sizes differ")
        view = self._packed(info)
        view.flags.writeable = False
        return view

    def verify(self) -> None:
        """Read every stored record and compare its checksum. Raises TorchScriptFileError."""
        for name, info in self._records.items():
            if info.compress_type == zipfile.ZIP_STORED and _crc(self.view(name)) != info.CRC:
                raise self._damaged(name, _DAMAGED)

    def _packed(self, info: zipfile.ZipInfo) -> Bytes:
        start = self._data_start(info)
        end = start + info.compress_size
        if end > self.bytes.size:
            raise self._damaged(
                info.filename,
                f"ends at byte {end}, but the file has {self.bytes.size}: it was cut off",
            )
        return self.bytes[start:end]

    def _data_start(self, info: zipfile.ZipInfo) -> int:
        offset = info.header_offset
        if not 0 <= offset <= self.bytes.size - _LOCAL_HEADER.size:
            raise self._damaged(info.filename, "starts past the end of the file")
        magic, name_size, extra_size = _LOCAL_HEADER.unpack_from(self.bytes.data, offset)
        if magic != _LOCAL_MAGIC:
            raise self._damaged(info.filename, "has no header where the file says it starts")
        return int(offset + _LOCAL_HEADER.size + name_size + extra_size)

    def _inflate(self, info: zipfile.ZipInfo, data: bytes) -> bytes:
        try:
            # One byte more than promised is enough to see a lie, and a bomb goes no further.
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, info.file_size + 1)
        except zlib.error as error:
            raise self._damaged(info.filename, f"is damaged: {error}") from error

    def _info(self, name: str) -> zipfile.ZipInfo:
        info = self._records.get(name)
        if info is None:
            raise TorchScriptFileError(f"{self.path} has no record {name!r}: no {self.kind}")
        return info

    def _error(self, name: str, what: str) -> TorchScriptFileError:
        return TorchScriptFileError(f"{self.path}: record {name!r} {what}")

    def _damaged(self, name: str, what: str) -> DamagedFileError:
        return DamagedFileError(f"{self.path}: record {name!r} {what}")


def _below_top(path: Path, infos: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    """Return the records by name; every name starts with the same folder."""
    records: dict[str, zipfile.ZipInfo] = {}
    tops: set[str] = set()
    for info in infos:
        top, _, name = info.filename.partition("/")
        tops.add(top)
        if name in records:
            raise TorchScriptFileError(f"{path} has two records {name!r}")
        if info.flag_bits & 1:
            raise TorchScriptFileError(f"{path}: record {name!r} is encrypted")
        records[name] = info
    if len(tops) != 1:
        raise TorchScriptFileError(f"{path} is a zip of {len(tops)} folders, no TorchScript file")
    return records


def _crc(data: npt.NDArray[Any]) -> int:
    crc = 0
    for start in range(0, data.size, _CRC_STEP_BYTES):
        crc = zlib.crc32(data[start : start + _CRC_STEP_BYTES].data, crc)
    return crc
