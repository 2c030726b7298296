"""Where the URL of a repository leads."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from app.repository.listing import Place
from app.repository.local import LocalPlace
from app.repository.options import RepositoryOptions
from app.repository.remote import RemotePlace


def place_of(options: RepositoryOptions) -> Place:
    """Return the place that ``options`` name. Raises PlaceError if nothing reads such URLs."""
    if "://" not in options.url:
        return LocalPlace(Path(options.url).expanduser())
    if options.url.startswith("file://"):
        return LocalPlace(Path(unquote(urlsplit(options.url).path)))
    return RemotePlace(options.url, Path(options.cache_dir).expanduser())
