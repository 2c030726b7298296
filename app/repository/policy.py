"""Which versions are to be served, and who of those served answers what. Pure."""

from collections.abc import Collection, Mapping

from app.repository.plan import NEWEST, Plan, ShadowOptions
from scheduler.routing import Part, Routes, ShadowRoute
from scheduler.versions import SHADOW


def newest(versions: Collection[str]) -> str:
    """Return the highest of ``versions``, "" if there is none."""
    return max(versions, key=int, default="")


def wanted(plan: Plan, good: Collection[str]) -> set[str]:
    """Return which of the ``good`` versions are to be served.

    What labels, split and shadow name comes on top of the policy; the shadow does not count as one
    of the latest, unless there is nothing else.
    """
    shadow = _target(plan.shadow.version, plan.labels, good) if plan.shadow else ""
    named = {_target(part, plan.labels, good) for part in (*plan.labels, *plan.split)}
    others = set(good) - {shadow} if len(good) > 1 else set(good)
    return (_by_policy(plan, others) | named | {shadow}) & set(good)


def missing(plan: Plan, found: Collection[str]) -> set[str]:
    """Return which versions are named by their numbers and are not among those ``found``."""
    shadow = [plan.shadow.version] if plan.shadow else []
    targets = {_target(name, plan.labels, found) for name in (*plan.labels, *plan.split, *shadow)}
    return {target for target in targets | {*map(str, plan.versions.only)} if target} - {*found}


def _by_policy(plan: Plan, versions: set[str]) -> set[str]:
    if plan.versions.policy == "all":
        return versions
    if plan.versions.policy == "specific":
        return {str(version) for version in plan.versions.only}
    return set(sorted(versions, key=int)[-plan.versions.latest :])


def labels_now(plan: Plan, before: Mapping[str, str], served: Collection[str]) -> dict[str, str]:
    """Return where each label points, of the versions ``served``.

    A label moves to a version once that is served; until then it stays where it was ``before``.
    """
    moved = {label: _target(label, plan.labels, served) for label in plan.labels}
    labels = {}
    for label, version in moved.items():
        at = version if version in served else before.get(label, "")
        if at in served:
            labels[label] = at
    return labels


def routes(plan: Plan, labels: Mapping[str, str], served: Collection[str]) -> Routes:
    """Return who answers what, with the ``labels`` where they point now."""
    parts = tuple(
        Part(name, _target(name, labels, served), weight)
        for name, weight in plan.split.items()
        if weight > 0
    )
    shadow = _shadow(plan.shadow, labels, served) if plan.shadow else None
    answering = [each for each in served if shadow is None or each != shadow.version]
    return Routes(newest(answering or served), dict(labels), parts, shadow)


def idle_shadow(routes: Routes, properties: Mapping[str, str]) -> str:
    """Say why the version that is to be the shadow, with these ``properties``, is none, or ""."""
    if routes.shadow is None or SHADOW in properties:
        return ""
    version, answering = routes.shadow.version, {part.version for part in routes.split}
    if version in answering | {routes.default}:
        return f"version {version} is no shadow: it answers clients itself"
    return f"version {version} is no shadow: its inputs or outputs differ from those that answer"


def _shadow(
    options: ShadowOptions, labels: Mapping[str, str], served: Collection[str]
) -> ShadowRoute:
    version = _target(options.version, labels, served)
    return ShadowRoute(version, options.share, options.max_in_flight, options.timeout_s)


def _target(name: str, labels: Mapping[str, str], versions: Collection[str]) -> str:
    """Return the version that ``name`` stands for: itself, or what a label says."""
    version = labels.get(name, name)
    return newest(versions) if version == NEWEST else version
