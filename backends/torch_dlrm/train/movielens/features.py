"""Features of a rating from what was known before it: nothing of the same second or later."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from backends.torch_dlrm.train.movielens.files import Movie, MovieLens, Ratings, User
from backends.torch_dlrm.train.rows import Floats, Ints, Rows

# A user's come first: a ranking request's context has the leading columns.
USER_COLUMNS = ("user_like_share", "user_log_ratings", "user_age_decades")
MOVIE_COLUMNS = ("movie_like_share", "movie_log_ratings", "movie_age_decades")
USER_FEATURES = ("user", "age", "gender", "occupation", "liked", "disliked")
MOVIE_FEATURES = ("movie", "genres")
COLUMNS, FEATURES = USER_COLUMNS + MOVIE_COLUMNS, USER_FEATURES + MOVIE_FEATURES

# Of each, the latest ones.
HISTORY = 50
GENDERS = ("F", "M")
_AGE_BUCKET_YEARS, _AGE_BUCKETS = 5, 20
_YEAR_S = 365.25 * 86400
# Where the data does not know the year; most movies of 1998's users were young.
_USUAL_YEAR = 1995
# Shares start as those of this many ratings of average liking.
_PRIOR_COUNT, _PRIOR_SHARE = 5.0, 0.55


@dataclass(slots=True)
class _Tally:
    """What is known of one user or movie so far."""

    ratings: int = 0
    likes: int = 0
    liked: list[int] = field(default_factory=list)
    disliked: list[int] = field(default_factory=list)

    @property
    def share(self) -> float:
        return (self.likes + _PRIOR_COUNT * _PRIOR_SHARE) / (self.ratings + _PRIOR_COUNT)

    @property
    def log_ratings(self) -> float:
        return math.log1p(self.ratings)


class Known:
    """Everything known up to some moment. Ids are MovieLens's own; row 0 of a table is nobody's."""

    def __init__(self, data: MovieLens) -> None:
        self._data = data
        self._genres = {name: number for number, name in enumerate(data.genres)}
        self._occupations = {name: number for number, name in enumerate(data.occupations)}
        self._users = {number: _Tally() for number in data.users}
        self._movies = {number: _Tally() for number in data.movies}

    @property
    def table_rows(self) -> tuple[int, ...]:
        """Rows of the table of each of FEATURES."""
        users, movies = max(self._users) + 1, max(self._movies) + 1
        of_user = (users, _AGE_BUCKETS, len(GENDERS), len(self._occupations), movies, movies)
        return (*of_user, movies, len(self._genres))

    def learn(self, user: int, movie: int, *, liked: bool) -> None:
        """Take in one rating."""
        for tally in (self._users[user], self._movies[movie]):
            tally.ratings += 1
            tally.likes += liked
        history = self._users[user].liked if liked else self._users[user].disliked
        history.append(movie)

    def rated(self, user: int) -> list[int]:
        """Return every movie that the user has rated."""
        return sorted(self._users[user].liked + self._users[user].disliked)

    def user_columns(self, user: int) -> tuple[float, ...]:
        """Return the values of USER_COLUMNS."""
        tally = self._users[user]
        return tally.share, tally.log_ratings, self._data.users[user].age / 10

    def movie_columns(self, movie: int, time_s: float) -> tuple[float, ...]:
        """Return the values of MOVIE_COLUMNS at a moment (Unix, seconds)."""
        tally = self._movies[movie]
        year = self._data.movies[movie].year or _USUAL_YEAR
        return tally.share, tally.log_ratings, (1970 + time_s / _YEAR_S - year) / 10

    def user_bags(self, user: int) -> tuple[list[int], ...]:
        """Return the ids of USER_FEATURES."""
        tally, facts = self._users[user], self._data.users[user]
        return (*self._facts(facts), tally.liked[-HISTORY:], tally.disliked[-HISTORY:])

    def movie_bags(self, movie: int) -> tuple[list[int], ...]:
        """Return the ids of MOVIE_FEATURES."""
        return [movie], self._genre_ids(self._data.movies[movie])

    def _facts(self, user: User) -> tuple[list[int], ...]:
        age = min(user.age // _AGE_BUCKET_YEARS, _AGE_BUCKETS - 1)
        gender, occupation = GENDERS.index(user.gender), self._occupations[user.occupation]
        return [user.id], [age], [gender], [occupation]

    def _genre_ids(self, movie: Movie) -> list[int]:
        return [self._genres[name] for name in movie.genres]


def build(data: MovieLens) -> tuple[Rows, Known]:
    """Return a row for every rating, in their order, and what is known after the last one."""
    known, ratings = Known(data), data.ratings
    dense: list[tuple[float, ...]] = []
    bags: list[tuple[list[int], ...]] = []
    for start, stop in _seconds(ratings):
        for at in range(start, stop):
            user, movie = int(ratings.users[at]), int(ratings.movies[at])
            movie_columns = known.movie_columns(movie, float(ratings.time_s[at]))
            dense.append(known.user_columns(user) + movie_columns)
            bags.append(known.user_bags(user) + known.movie_bags(movie))
        for at in range(start, stop):
            user, movie = int(ratings.users[at]), int(ratings.movies[at])
            known.learn(user, movie, liked=bool(ratings.labels[at]))
    lengths, values = key_major(bags)
    return Rows(np.array(dense, np.float32), lengths, values, ratings.labels), known


def _seconds(ratings: Ratings) -> Iterator[tuple[int, int]]:
    """Yield the first rating of each second and the one after its last."""
    starts = np.flatnonzero(np.diff(ratings.time_s, prepend=-1)).tolist()
    return itertools.pairwise([*starts, len(ratings)])


def key_major(bags: Sequence[tuple[list[int], ...]]) -> tuple[Ints, Ints]:
    """Return lengths (features, rows) and the ids of all rows of feature 0, then of feature 1."""
    columns = list(zip(*bags, strict=True))
    lengths = np.array([[len(bag) for bag in column] for column in columns], np.int64)
    flat = itertools.chain.from_iterable(bag for column in columns for bag in column)
    return lengths, np.fromiter(flat, np.int64, int(lengths.sum()))


def like_shares(rows: Rows) -> Floats:
    """Return the movie's share of likes so far: how popularity alone would score."""
    return rows.dense[:, COLUMNS.index("movie_like_share")]
