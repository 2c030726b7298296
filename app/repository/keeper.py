"""Keep what is served of one model as its files and its configuration say."""

import asyncio
import logging
import time
from dataclasses import dataclass, replace

from app import plugins
from app.models import Served
from app.repository.listing import FoundModel, FoundVersion, Place, PlaceError
from app.repository.loads import Loads
from app.repository.plan import Plan, Planner
from app.repository.policy import idle_shadow, labels_now, missing, newest, routes, wanted
from app.repository.version import Proven, model_path
from app.settings import ConfigError
from scheduler.backend import Backend
from scheduler.control import Refused
from scheduler.engine import Engine
from scheduler.errors import LoadError, ServingError
from scheduler.observer import ReloadOutcome
from scheduler.routing import Routes
from scheduler.threads import run_in_thread

logger = logging.getLogger(__name__)

_ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A version that is served: of which files and settings, and what it was made of."""

    state: str
    signature: str
    served: Served


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a version, in one state of its files and settings, is not served."""

    state: str
    reason: str


class Keeper:
    """Load, prove, swap and unload the versions of the model ``name``. One call at a time.

    ``grace_s`` is what the requests of a version that goes have to finish.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        place: Place,
        planner: Planner,
        loads: Loads,
        grace_s: float,
    ) -> None:
        self._name = name
        self._engine = engine
        self._place = place
        self._planner = planner
        self._loads = loads
        self._loading: set[str] = set()
        self._grace_s = grace_s
        self._plan: Plan | None = None
        self._config: str | None = None
        self._served: dict[str, _Loaded] = {}
        self._refusals: dict[str, _Refusal] = {}  # by version, "" for the model
        self._labels: dict[str, str] = {}
        self._routes: Routes | None = None
        self._unmet: list[str] = [""]
        self._idle = ""

    @property
    def serves(self) -> bool:
        """Whether any version is served."""
        return bool(self._served)

    @property
    def refused(self) -> tuple[Refused, ...]:
        """What is not served, or not as it now lies there, and why."""
        return tuple(
            Refused(self._name, version, refusal.reason)
            for version, refusal in self._refusals.items()
        )

    @property
    def served(self) -> Served | None:
        """What serves by default, and which versions beside it."""
        if not self._served:
            return None
        version = self._routes.default if self._routes else ""
        one = self._served.get(version, self._served[newest(self._served)]).served
        others = tuple(sorted(set(self._served) - {one.spec.version}, key=int))
        return replace(one, others=others)

    async def sync(self, found: FoundModel) -> None:
        """Make what is served what ``found`` wants; what cannot be is refused and serves as it was.

        Versions are loaded side by side where there are slots, and others go only when their
        successors serve.
        """
        plan = self._read(found)
        if plan is None:
            return
        self._note_problems(plan, found)
        async with asyncio.TaskGroup() as group:
            await self._load_on(plan, found, group)
        self._route(plan)
        await self._retire(plan, found)
        self._tell_idle_shadow()
        self._unmet = [*wanted(plan, found.versions), *missing(plan, found.versions), ""]

    async def _load_on(self, plan: Plan, found: FoundModel, group: asyncio.TaskGroup) -> None:
        """Load what is to be loaded, the newest first; with others, for which slots are free."""
        while (version := self._next(plan, found)) is not None:
            self._loading.add(version)
            if self._next(plan, found) is not None and await self._loads.take_more(self._name):
                group.create_task(self._load_beside(plan, found, group))
            await self._load(plan, version, found.versions[version].signature)
            self._loading.discard(version)
            self._route(plan)

    async def _load_beside(self, plan: Plan, found: FoundModel, group: asyncio.TaskGroup) -> None:
        try:
            await self._load_on(plan, found, group)
        finally:
            self._loads.give_back(self._name)

    @property
    def unmet(self) -> tuple[Refused, ...]:
        """What the last ``sync`` should have loaded and has not."""
        return tuple(one for one in self.refused if one.version in self._unmet)

    async def drop(self) -> None:
        """Serve the model no longer."""
        for version in sorted(self._served, key=int):
            await self._unload(version)
        self._plan, self._config, self._routes = None, None, None
        self._refusals.clear()
        self._labels.clear()

    def _read(self, found: FoundModel) -> Plan | None:
        """Return the plan in force: a configuration that is wrong leaves the one before."""
        if found.problem:
            self._refuse("", found.problem, found.problem)
            return None
        if found.config != self._config:
            try:
                self._plan = self._planner(self._name, found.config, found.config_signature)
            except (ConfigError, LoadError, plugins.PluginError) as error:
                self._refuse("", found.config, str(error))
                return self._plan
            self._config = found.config
        self._refusals.pop("", None)
        return self._plan

    def _note_problems(self, plan: Plan, found: FoundModel) -> None:
        """Refuse what cannot be loaded, and forget why what is otherwise by now was refused."""
        absent = missing(plan, found.versions)
        for version, refusal in list(self._refusals.items()):
            one = found.versions.get(version)
            state = (one.problem or _state(plan, one)) if one else _ABSENT
            kept = one is not None or version in absent or version in self._served
            if version and not (kept and refusal.state == state):
                del self._refusals[version]
        for version in absent - {*self._served}:
            self._refuse(version, _ABSENT, "its configuration names it, and it is not there")
        for version, one in found.versions.items():
            if one.problem:
                self._refuse(version, one.problem, one.problem)

    def _next(self, plan: Plan, found: FoundModel) -> str | None:
        """Return a version to load: wanted, neither loading nor loaded in its present state."""
        for version in sorted(wanted(plan, self._good(plan, found)), key=int, reverse=True):
            one = found.versions.get(version)
            if one is None or version in self._loading or self._is_refused(plan, version, one):
                continue
            loaded = self._served.get(version)
            if loaded is None or loaded.state != _state(plan, one):
                return version
        return None

    def _good(self, plan: Plan, found: FoundModel) -> set[str]:
        """Return the versions that there are and that serve or might."""
        return {
            version
            for version, one in found.versions.items()
            if version in self._served or not self._is_refused(plan, version, one)
        }

    def _is_refused(self, plan: Plan, version: str, one: FoundVersion) -> bool:
        refusal = self._refusals.get(version)
        return bool(one.problem) or (refusal is not None and refusal.state == _state(plan, one))

    async def _load(self, plan: Plan, version: str, signature: str) -> None:
        """Load a version and let it serve, beside others or in the place of itself."""
        state, before = _state(plan, FoundVersion(signature)), self._served.get(version)
        try:
            served = await self._swap(plan, version, signature)
        except (LoadError, PlaceError) as error:
            self._refuse(version, state, str(error))
        except Exception as error:  # supervision: a plug-in's fault ends this load and no other
            logger.exception("%s: version %s failed", self._name, version)
            self._refuse(version, state, repr(error))
        else:
            self._served[version] = _Loaded(state, signature, served)
            self._refusals.pop(version, None)
        outcome: ReloadOutcome = "failed" if version in self._refusals else "ok"
        self._engine.observer.reloaded(self._name, outcome)
        kept = self._served.get(version)
        for each in {signature, before.signature if before else signature}:
            if kept is None or kept.signature != each:
                self._place.release(self._name, version, each)

    async def _swap(self, plan: Plan, version: str, signature: str) -> Served:
        place, name, started_s = self._place, self._name, time.perf_counter()
        folder = await run_in_thread(lambda: place.fetch(name, version, signature), "fetch")
        model = plan.model.with_options(path=str(model_path(folder)), name=name, version=version)
        logger.info("%s: loading version %s ...", name, version)
        if missing_file := model.missing():
            raise LoadError(missing_file)

        await model.check_signed()

        def build() -> Backend:
            return Proven(
                model.build(), (name, version), folder, plan.golden,
                lambda: place.unchanged(name, version, signature),
            )  # fmt: skip

        def remake() -> Backend:
            model.verify()
            return build()

        backend, options = build(), model.scheduler.options
        await self._engine.swap(backend, options, remake, grace_s=self._grace_s, others=False)
        logger.info(
            "%s: version %s loaded in %.2f s; %s", name, version,
            time.perf_counter() - started_s, model.effective(backend),
        )  # fmt: skip
        return Served(model, backend.spec)

    def _route(self, plan: Plan) -> None:
        self._labels = labels_now(plan, self._labels, self._served)
        wanted_routes = routes(plan, self._labels, self._served)
        if wanted_routes != self._routes:
            self._routes = wanted_routes
            self._engine.route(self._name, wanted_routes)

    def _tell_idle_shadow(self) -> None:
        """Log once why a shadow that is served gets no copies."""
        now, idle = self._routes, ""
        if now and now.shadow and now.shadow.version in self._served:
            spec = self._engine.spec(self._name, now.shadow.version)
            idle = idle_shadow(now, spec.properties)
        if idle and idle != self._idle:
            logger.warning("%s: %s", self._name, idle)
        self._idle = idle

    async def _retire(self, plan: Plan, found: FoundModel) -> None:
        """Unload what nobody wants any more; one version stays, whatever became of its files."""
        keep = wanted(plan, self._good(plan, found)) | {*self._labels.values()}
        if not keep & {*self._served}:
            keep = {newest(self._served)}
        for version in sorted({*self._served} - keep, key=int):
            await self._unload(version)
        self._route(plan)
        for version in {*self._served} - {*found.versions}:
            self._refuse(version, _ABSENT, "its files are gone; it serves on")

    async def _unload(self, version: str) -> None:
        loaded = self._served.pop(version)
        self._refusals.pop(version, None)
        try:
            await self._engine.unload(self._name, version, grace_s=self._grace_s)
        except ServingError as error:
            logger.warning("%s: version %s: %s", self._name, version, error.detail)
        self._place.release(self._name, version, loaded.signature)
        logger.info("%s: version %s unloaded", self._name, version)

    def _refuse(self, version: str, state: str, reason: str) -> None:
        """Keep why, and log it once."""
        reason = reason.encode("utf-8", "backslashreplace").decode()  # files may have any name
        if self._refusals.get(version) != _Refusal(state, reason):
            what = f"version {version}" if version else "its configuration"
            serving = ", ".join(sorted(self._served, key=int)) or "nothing"
            logger.error("%s: %s is refused: %s; serving: %s", self._name, what, reason, serving)
        self._refusals[version] = _Refusal(state, reason)


def _state(plan: Plan, found: FoundVersion) -> str:
    return f"{found.signature} {plan.loading}"
