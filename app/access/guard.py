"""The keys in force: looked up in constant time, and read anew once their file changes.

As with certificates (``transports/tls.py``) the file is looked at when a client asks, some
microseconds: no timer, and a file that is wrong leaves the keys before it in force.
"""

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias

from app.access.account import Account
from app.access.keys import parse_keys
from app.access.ledger import Ledger
from app.settings import ConfigError
from scheduler.errors import Code, ServingError
from transports.files import stamp

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 1 << 20
MAX_CREDENTIAL_CHARACTERS = 512

Outcome = Literal["ok", "missing", "unknown", "rate_limited"]
# Told of each request: the name of its key, "" if there is none.
Watch: TypeAlias = Callable[[str, Outcome], None]


class Guard:
    """Know clients by the keys in the file ``path``. Raises ConfigError if it is wrong at first.

    Where other processes take requests by the same keys, all have the same ``ledger``.
    """

    def __init__(
        self,
        path: Path,
        watch: Watch,
        clock: Callable[[], float] = time.monotonic,
        ledger: Ledger | None = None,
    ) -> None:
        self._path = path
        self._ledger = ledger
        self._watch = watch
        self._clock = clock
        # Names of hashes that nobody outside can foresee, so that the time a look-up takes says
        # nothing about the hashes in it.
        self._secret = secrets.token_bytes(32)
        self._accounts: dict[bytes, tuple[bytes, Account]] = {}
        self._stamp = stamp(path)
        self._read()

    def caller(self, credential: str) -> "KeyHolder":
        """Return whose ``credential`` it is. Raises ServingError (UNAUTHENTICATED)."""
        if not credential:
            self._watch("", "missing")
            raise ServingError(
                Code.UNAUTHENTICATED,
                "an API key is needed: send authorization: Bearer KEY, or x-api-key: KEY",
            )
        encoded = credential[:MAX_CREDENTIAL_CHARACTERS].encode("utf-8", "replace")
        return KeyHolder(self, hashlib.sha256(encoded).digest())

    def account(self, digest: bytes) -> Account:
        """Return the account of the key with that hash. Raises ServingError (UNAUTHENTICATED)."""
        self._look()
        found = self._accounts.get(self._tag(digest))
        if found is None or not hmac.compare_digest(found[0], digest):
            self._watch("", "unknown")
            raise ServingError(Code.UNAUTHENTICATED, "the API key is not known")
        return found[1]

    def count(self, account: Account, work: Callable[[], None]) -> None:
        """Let ``work`` take from ``account``, and tell. Raises ServingError (RATE_LIMITED)."""
        try:
            work()
        except ServingError:
            self._watch(account.name, "rate_limited")
            raise

    def began(self, account: Account) -> None:
        """Tell of a request that may go on."""
        self._watch(account.name, "ok")

    def reload(self) -> None:
        """Read the file now; if it is wrong the log says why and the keys before stay."""
        self._stamp = stamp(self._path)
        try:
            self._read()
        except ConfigError as error:
            logger.error("new API keys not taken, those before stay: %s", error)  # noqa: TRY400
        else:
            logger.info("API keys read anew: %d in %s", len(self._accounts), self._path)

    def _look(self) -> None:
        if stamp(self._path) != self._stamp:
            self.reload()

    def _read(self) -> None:
        """Take the file's keys; accounts whose limits are the same go on. Raises ConfigError."""
        keys = parse_keys(_content(self._path), str(self._path))
        before = {account.name: account for _, account in self._accounts.values()}
        accounts: dict[bytes, tuple[bytes, Account]] = {}
        for name, options in keys.items():
            account = before.get(name)
            if account is None or not _same_limits(account, options):
                account = Account(name, options, self._clock, self._ledger)
            account.options = options
            for digest in options.digests:
                accounts[self._tag(digest)] = (digest, account)
        self._accounts = accounts

    def _tag(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, digest_size=16, key=self._secret).digest()


class KeyHolder:
    """A client by the hash of its key, for as long as that is in the file."""

    __slots__ = ("_account", "_digest", "_guard")

    def __init__(self, guard: Guard, digest: bytes) -> None:
        self._guard = guard
        self._digest = digest
        self._account = guard.account(digest)

    @property
    def control(self) -> bool:
        """Whether the key lets its holder load and unload models."""
        return self._account.options.control

    def begin(self) -> None:
        """Count a request. Raises ServingError (UNAUTHENTICATED, RATE_LIMITED)."""
        self._account = account = self._guard.account(self._digest)
        self._guard.count(account, account.begin)
        self._guard.began(account)

    def spend(self, rows: int) -> None:
        """Count rows of the request that began last. Raises ServingError (RATE_LIMITED)."""
        account = self._account
        self._guard.count(account, lambda: account.spend(rows))


def guard_of(path: str, watch: Watch, ledger: Ledger | None = None) -> Guard | None:
    """Return who knows the keys in the file, None without one. Raises ConfigError."""
    if not path:
        return None
    try:
        return Guard(Path(path), watch, ledger=ledger)
    except ConfigError as error:
        raise ConfigError(f"server.api_keys: {error}") from error


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} has more than {MAX_FILE_BYTES} bytes")
    return content


def _same_limits(account: Account, options: object) -> bool:
    limits = ("requests_per_s", "rows_per_s", "burst_s")
    return all(getattr(account.options, one) == getattr(options, one) for one in limits)
