"""Who can be asked about what: users and movies, each with their fields of a request."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from backends.dlrm.gather import DENSE, IDS
from backends.torch_dlrm.train.movielens.features import (
    COLUMNS,
    FEATURES,
    GENDERS,
    MOVIE_FEATURES,
    USER_FEATURES,
    Known,
    key_major,
)
from backends.torch_dlrm.train.movielens.files import Movie, MovieLens
from backends.torch_dlrm.train.rows import Rows

CATALOGUE_FILE, EXAMPLE_NOTE_FILE = "catalogue.json", "example.txt"
# The example is about movies that most people know.
_WELL_KNOWN, _SHOWN = 100, 3
_DIGITS = 4


class Catalogue:
    """The data set as it is known at ``known``: after the last rating."""

    def __init__(self, data: MovieLens, known: Known) -> None:
        self._data = data
        self._known = known
        self._now_s = float(data.ratings.time_s[-1])
        self._counts = np.bincount(data.ratings.movies)

    def document(self) -> dict[str, Any]:
        """Return all of it, as docs/movielens.md says."""
        return {
            "float_features": list(COLUMNS),
            "id_list_features": list(FEATURES),
            "genders": list(GENDERS),
            "occupations": list(self._data.occupations),
            "genres": list(self._data.genres),
            "users": [self.user(number) for number in sorted(self._data.users)],
            "movies": [self.movie(number) for number in sorted(self._data.movies)],
        }

    def user(self, number: int) -> dict[str, Any]:
        """Return a user: facts, movies rated, and the ``context`` of a ranking request."""
        facts, known = self._data.users[number], self._known
        return {
            "id": number,
            "age": facts.age,
            "gender": facts.gender,
            "occupation": facts.occupation,
            "rated": known.rated(number),
            "context": _fields(known.user_columns(number), USER_FEATURES, known.user_bags(number)),
        }

    def movie(self, number: int) -> dict[str, Any]:
        """Return a movie: facts, and the ``candidate`` fields of its row."""
        facts, known = self._data.movies[number], self._known
        columns = known.movie_columns(number, self._now_s)
        return {
            "id": number,
            "title": facts.title,
            "year": facts.year,
            "genres": list(facts.genres),
            "ratings": int(self._counts[number]),
            "candidate": _fields(columns, MOVIE_FEATURES, known.movie_bags(number)),
        }

    def example_user(self) -> int:
        """Return the user with the fewest ratings: the request is short enough to be read."""
        return min(self._data.users, key=lambda number: (len(self._known.rated(number)), number))

    def candidates(self, user: int) -> list[int]:
        """Return well-known movies that the user has not rated."""
        known = np.argsort(-self._counts, kind="stable")[:_WELL_KNOWN].tolist()
        return sorted(set(known) - set(self._known.rated(user)))

    def rows(self, user: int, movies: Sequence[int]) -> Rows:
        """Return a row for the user and each of ``movies``; the labels are zeros."""
        known = self._known
        mine = known.user_columns(user), known.user_bags(user)
        dense = [mine[0] + known.movie_columns(movie, self._now_s) for movie in movies]
        bags = [mine[1] + known.movie_bags(movie) for movie in movies]
        zeros = np.zeros(len(movies), np.float32)
        return Rows(np.array(dense, np.float32), *key_major(bags), zeros)

    def request(self, user: int, movies: Iterable[int]) -> str:
        """Return the JSON body that ranks ``movies`` for ``user``; a line each field."""
        candidates = [self.movie(movie)["candidate"] for movie in movies]
        bags = {name: [each[IDS][name] for each in candidates] for name in MOVIE_FEATURES}
        return _pretty(
            {
                "context": self.user(user)["context"],
                DENSE: [each[DENSE] for each in candidates],
                IDS: bags,
            }
        )

    def note(self, user: int, movies: Iterable[int]) -> str:
        """Say whom and what a request is about, in one line."""
        facts = self._data.users[user]
        titles = "; ".join(_titled(self._data.movies[movie]) for movie in movies)
        return f"user {user} ({facts.age}, {facts.occupation}) and the movies {titles}"


def shown(scores: Sequence[float], movies: Sequence[int]) -> list[int]:
    """Return the best and the worst of ``movies``, the best first."""
    order = [movies[at] for at in np.argsort(-np.asarray(scores), kind="stable").tolist()]
    return order[:_SHOWN] + order[-_SHOWN:]


def _fields(
    columns: Sequence[float], names: Sequence[str], bags: Sequence[Sequence[int]]
) -> dict[str, Any]:
    dense = [round(value, _DIGITS) for value in columns]
    return {DENSE: dense, IDS: dict(zip(names, map(list, bags), strict=True))}


def _titled(movie: Movie) -> str:
    return f"{movie.title} ({movie.year})" if movie.year else movie.title


def _pretty(document: Mapping[str, Any], indent: str = "") -> str:
    """Return JSON whose objects have a line for each field, and whose lists have one line."""
    inner = indent + "  "
    lines = [
        f"{inner}{json.dumps(name)}: "
        + (_pretty(value, inner) if isinstance(value, Mapping) else json.dumps(value))
        for name, value in document.items()
    ]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def write(folder: Path, made: Catalogue, note: str) -> None:
    """Write the catalogue into an artifact folder, and what its example is about."""
    text = json.dumps(made.document(), ensure_ascii=False, separators=(",", ":"))
    (folder / CATALOGUE_FILE).write_text(text + "\n", encoding="utf-8")
    (folder / EXAMPLE_NOTE_FILE).write_text(note + "\n", encoding="utf-8")
