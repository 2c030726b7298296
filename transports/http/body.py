"""Read a request's body whole, within a limit of bytes and of time."""

import asyncio
import contextlib
from http import HTTPStatus

from asgiref.typing import ASGIReceiveCallable

from scheduler.errors import Code, ServingError
