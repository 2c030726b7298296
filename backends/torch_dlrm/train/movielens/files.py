"""Read the ratings, users and movies of MovieLens-100K from the wheel."""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from backends.torch_dlrm.train.errors import NoDataError
from backends.torch_dlrm.train.rows import Floats, Ints

_FILE = "recbole/dataset_example/ml-100k/ml-100k."
# What counts as a recommendation that was right.
LIKED = 4


@dataclass(frozen=True, slots=True)
class User:
    """One user as the data describes them."""

    id: int
    age: int
    gender: str
    occupation: str


@dataclass(frozen=True, slots=True)
class Movie:
    """One movie; ``year`` is 0 if the data does not know it."""

    id: int
    title: str
    year: int
    genres: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Ratings:
    """All ratings in the order of time: ``time_s`` (Unix), and 1 for liked in ``labels``."""

    users: Ints
    movies: Ints
    time_s: Ints
    labels: Floats

    def __len__(self) -> int:
        return len(self.users)


@dataclass(frozen=True, slots=True)
class MovieLens:
    """The whole data set; users and movies by id."""

    ratings: Ratings
    users: Mapping[int, User]
    movies: Mapping[int, Movie]

    @property
    def genres(self) -> tuple[str, ...]:
        """Every genre there is; its place is its id."""
        return tuple(sorted({genre for movie in self.movies.values() for genre in movie.genres}))

    @property
    def occupations(self) -> tuple[str, ...]:
        """Every occupation there is; its place is its id."""
        return tuple(sorted({user.occupation for user in self.users.values()}))


def read(wheel: Path) -> MovieLens:
    """Read the data set. Raises NoDataError."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            users = [
                User(int(i), int(age), g, job) for i, age, g, job, _ in _lines(archive, "user")
            ]
            movies = [_movie(fields) for fields in _lines(archive, "item")]
            ratings = _ratings(_lines(archive, "inter"))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise NoDataError(f"{wheel} does not hold MovieLens-100K: {error}") from error
    return MovieLens(
        ratings, {user.id: user for user in users}, {movie.id: movie for movie in movies}
    )


def _lines(archive: zipfile.ZipFile, kind: str) -> list[list[str]]:
    _, *lines = archive.read(_FILE + kind).decode("utf-8").splitlines()
    return [line.split("\t") for line in lines]


def _movie(fields: Sequence[str]) -> Movie:
    number, title, year, genres = fields
    return Movie(int(number), title, int(year) if year.isdigit() else 0, tuple(genres.split()))


def _ratings(lines: Sequence[Sequence[str]]) -> Ratings:
    users, movies, stars, time_s = np.array(lines, np.float64).astype(np.int64).T
    # Of the same second in the order of ids: the file's own order says nothing.
    order = np.lexsort((movies, users, time_s))
    labels = (stars[order] >= LIKED).astype(np.float32)
    return Ratings(users[order], movies[order], time_s[order], labels)
