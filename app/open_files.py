"""How many files and sockets the process may have open."""

import logging
import resource

logger = logging.getLogger(__name__)

# Below it the limits on connections are more than the system allows.
ENOUGH = 4096


def allow_open_files() -> None:
    """Raise the limit as far as the system lets a process do that by itself.

    The usual soft limit, 1024, is for programs that use select; connections each take a file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < ENOUGH:
        logger.warning(
            "at most %d files may be open, connections among them: clients beyond that will wait"
            " (ulimit -n)", hard,
        )  # fmt: skip
