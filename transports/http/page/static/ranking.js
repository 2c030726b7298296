// For a model with a catalogue: pick a user, see what is best for them.

import { make, options, table } from "./dom.js";
import { amount, plural, score } from "./format.js";
import { predict, spent } from "./predict.js";

const SHOWN = ["10", "25", "100"];
const LIKED = 6;

export class Ranking {
  constructor(model, version, catalogue) {
    this.model = model;
    this.version = version;
    this.catalogue = catalogue;
    this.titles = new Map(catalogue.movies.map((movie) => [movie.id, titled(movie)]));
    this.turn = 0;
    const again = () => this.rank();
    this.user = make("select", { change: again });
    options(this.user, catalogue.users.map((user, at) => [String(at), described(user)]));
    this.shown = make("select", { change: again });
    options(this.shown, SHOWN.map((count) => [count, count]));
    this.unseen = make("input", { type: "checkbox", change: again });
    this.unseen.checked = true;
    this.about = make("p", { class: "soft" });
    this.note = make("p", { role: "status" });
    this.result = make("div");
    this.element = make("div", {}, this.controls(), this.about, this.note, this.result);
    this.rank();
  }

  controls() {
    return make("div", { class: "controls" },
      make("label", {}, "User ", this.user),
      make("button", { type: "button", click: () => this.another() }, "Another user"),
      make("label", {}, "Show ", this.shown),
      make("label", { class: "check" }, this.unseen, " only movies they have not rated"));
  }

  another() {
    this.user.value = String(Math.floor(Math.random() * this.catalogue.users.length));
    this.rank();
  }

  async rank() {
    const turn = (this.turn += 1);
    const user = this.catalogue.users[Number(this.user.value)];
    const rated = new Set(this.unseen.checked ? user.rated : []);
    const movies = this.catalogue.movies.filter((movie) => !rated.has(movie.id));
    const liked = (user.context.id_list_features.liked ?? []).slice(-LIKED).reverse();
    const titles = liked.map((id) => this.titles.get(id) ?? String(id)).join(" · ");
    this.about.textContent = titles ? `Liked last: ${titles}` : "";
    try {
      const answer = await predict(this.model, this.version, JSON.stringify(request(user, movies)));
      if (turn === this.turn) this.show(answer, movies);
    } catch (error) {
      if (turn === this.turn) this.note.textContent = error.message;
    }
  }

  show(answer, movies) {
    const [scores] = Object.values(answer.predictions);
    const best = movies.map((movie, at) => ({ movie, score: scores[at] }))
      .sort((one, other) => other.score - one.score).slice(0, Number(this.shown.value));
    this.note.textContent = spent(answer, movies.length, "movie");
    const heads = [{ text: "Rank", number: true }, "Movie", { text: "Score", number: true },
      { text: "Ratings", number: true }, "Genres"];
    const rows = best.map(({ movie, score: value }, at) => [
      String(at + 1), titled(movie), bar(value), amount(movie.ratings), movie.genres.join(", "),
    ]);
    this.result.replaceChildren(table("The best movies for this user", heads, rows));
  }
}

// What the user's features are is said once, for all candidates.
function request(user, movies) {
  const candidates = movies.map((movie) => movie.candidate);
  const names = Object.keys(candidates[0]?.id_list_features ?? {});
  return {
    context: user.context,
    float_features: candidates.map((each) => each.float_features),
    id_list_features: Object.fromEntries(
      names.map((name) => [name, candidates.map((each) => each.id_list_features[name])])),
  };
}

function described(user) {
  return `${user.id}: ${user.occupation}, ${user.age}, ${plural(user.rated.length, "rating")}`;
}

function titled(movie) {
  return movie.year ? `${movie.title} (${movie.year})` : movie.title;
}

function bar(value) {
  const fill = make("i", { "aria-hidden": "true" });
  fill.style.width = `${Math.min(Math.max(value, 0), 1) * 100}%`;
  return make("span", { class: "score" }, make("span", { class: "track" }, fill), score(value));
}
