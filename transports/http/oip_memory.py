"""Triton's pages of shared memory: which regions there are, registering and unregistering."""

from typing import Any

from fastapi import APIRouter, Request

from scheduler.engine import Engine
from scheduler.errors import invalid
from scheduler.regions import Region
from transports.codecs.strict_json import shown
from transports.http.intake import Intake
from transports.http.oip_body import PAGE_BODY, Document, document_in
from transports.shared_memory import check_cuda, regions_of, register_cuda, unregister_cuda


def add_shared_memory(router: APIRouter, engine: Engine) -> None:
    """Add the pages; without regions they say how to have some."""
    _add_system(router, engine)
    _add_cuda(router, engine)


def _add_system(router: APIRouter, engine: Engine) -> None:
    intake = Intake(PAGE_BODY)

    @router.get("/systemsharedmemory/status")
    @router.get("/systemsharedmemory/region/{region}/status")
    async def system_status(region: str = "") -> list[Document]:
        """List the regions of system shared memory, or one."""
        return [
            {"name": one.name, "key": one.key, "offset": one.offset, "byte_size": one.size_bytes}
            for one in regions_of(engine).status(region)
        ]

    @router.post("/systemsharedmemory/region/{region}/register")
    async def system_register(region: str, request: Request) -> Document:
        """Let requests name a part of a POSIX shared memory object."""
        regions = regions_of(engine)
        document = await document_in(request, intake)
        key = document.get("key")
        if not isinstance(key, str):
            raise invalid(f"key is {shown(key)}, expected a string")
        offset, size_bytes = _whole(document, "offset", 0), _whole(document, "byte_size")
        regions.register(Region(region, key, offset, size_bytes))
        return {}

    @router.post("/systemsharedmemory/unregister")
    @router.post("/systemsharedmemory/region/{region}/unregister")
    async def system_unregister(region: str = "") -> Document:
        """Forget a region, or all."""
        regions_of(engine).unregister(region)
        return {}


def _add_cuda(router: APIRouter, engine: Engine) -> None:
    @router.get("/cudasharedmemory/status", include_in_schema=False)
    @router.get("/cudasharedmemory/region/{region}/status", include_in_schema=False)
    async def cuda_status(region: str = "") -> list[Document]:
        check_cuda(engine, region)
        return []

    @router.post("/cudasharedmemory/region/{region}/register", include_in_schema=False)
    async def cuda_register(region: str) -> Document:
        del region
        register_cuda(engine)
        return {}

    @router.post("/cudasharedmemory/unregister", include_in_schema=False)
    @router.post("/cudasharedmemory/region/{region}/unregister", include_in_schema=False)
    async def cuda_unregister(region: str = "") -> Document:
        del region
        unregister_cuda(engine)
        return {}


def _whole(document: Document, name: str, otherwise: int | None = None) -> int:
    value: Any = document.get(name, otherwise)
    if type(value) is not int or value < 0:  # True is an int, too
        raise invalid(f"{name} is {shown(value)}, expected an integer of 0 or more")
    return value
