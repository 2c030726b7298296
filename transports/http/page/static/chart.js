// One chart of the last minutes: lines, a legend with values, a cursor for pointer and keys, and
// the same figures as a table.

import { draw, make, table } from "./dom.js";
import { marks, path, span } from "./scale.js";

const HEIGHT = 168;
const EDGE = { left: 52, right: 10, top: 8, bottom: 22 };
const MOST_S = 300;
const TABLE_STEP_S = 10;
const KEYS = { ArrowLeft: 1, ArrowRight: -1, PageUp: 30, PageDown: -30, Home: MOST_S, End: -MOST_S };

export class Chart {
  // `lines` are [name in the series, label]; `format` writes a value with its unit; `least` is the
  // smallest step of the axis that says anything.
  constructor(title, lines, format, least = 0) {
    this.title = title;
    this.lines = lines;
    this.format = format;
    this.least = least;
    this.span = MOST_S;
    this.series = {};
    this.ago = null; // seconds that the cursor is back, null: none
    this.grid = draw("g");
    this.paths = lines.map((_, at) => draw("path", { class: `line line${at}` }));
    this.rule = draw("line", { class: "rule", y1: EDGE.top, y2: HEIGHT - EDGE.bottom });
    this.plot = draw("svg", { height: HEIGHT, "aria-hidden": "true" },
      this.grid, ...this.paths, this.rule);
    this.cursor = this.madeCursor();
    this.values = lines.map(() => make("b"));
    this.when = make("span", { class: "soft when" });
    this.rows = make("div");
    this.details = make("details", { toggle: () => this.fillTable() },
      make("summary", {}, "Table"), this.rows);
    this.element = this.madeElement();
    new ResizeObserver(() => this.show(this.series, this.now)).observe(this.cursor);
  }

  madeCursor() {
    return make("div", {
      class: "plot", tabindex: 0, role: "slider",
      "aria-label": `${this.title}: time`, "aria-orientation": "horizontal",
      "aria-valuemin": -MOST_S, "aria-valuemax": 0, "aria-valuenow": 0, "aria-valuetext": "now",
      keydown: (event) => this.key(event),
      pointermove: (event) => this.point(this.agoAt(event.offsetX)),
      pointerleave: () => this.point(null),
      blur: () => this.point(null),
    }, this.plot);
  }

  madeElement() {
    const legend = this.lines.map(([, label], at) =>
      make("li", {},
        draw("svg", { width: 22, height: 8, "aria-hidden": "true" },
          draw("path", { class: `line line${at}`, d: "M0 4H22" })),
        `${label} `, this.values[at]));
    return make("figure", { class: "card chart" },
      make("figcaption", {}, make("h3", {}, this.title), this.when),
      make("ul", { class: "legend" }, ...legend), this.cursor, this.details);
  }

  // Show `series` (lists by name, the last value being the newest) and the figures of `now`.
  show(series, now) {
    this.series = series;
    this.now = now ?? {};
    const width = this.cursor.clientWidth;
    if (width === 0) return;
    const known = this.lines.map(([name]) => series[name] ?? []);
    const largest = Math.max(...known.flat().filter((each) => each !== null), 0);
    const ticks = marks(largest || 1, this.least);
    this.span = span(known[0].length, MOST_S);
    const bottom = HEIGHT - EDGE.bottom;
    this.x = (ago) => EDGE.left + (1 - ago / (this.span - 1)) * (width - EDGE.left - EDGE.right);
    const y = (value) => bottom - (value / ticks.at(-1)) * (bottom - EDGE.top);
    this.plot.setAttribute("width", width);
    this.drawGrid(ticks, y, width);
    known.forEach((values, line) => {
      const x = (at) => this.x(values.length - 1 - at);
      this.paths[line].setAttribute("d", path(values, x, y));
    });
    this.point(this.ago);
    if (this.details.open) this.fillTable();
  }

  drawGrid(ticks, y, width) {
    const across = ticks.flatMap((tick) => [
      draw("line", { x1: EDGE.left, x2: width - EDGE.right, y1: y(tick), y2: y(tick) }),
      draw("text", { x: EDGE.left - 8, y: y(tick) + 4, "text-anchor": "end" }, this.format(tick)),
    ]);
    const times = [[this.span, `${this.span / 60} min ago`, "start"], [0, "now", "end"]];
    const below = times.map(([ago, text, anchor]) =>
      draw("text", {
        x: this.x(Math.min(ago, this.span - 1)), y: HEIGHT - 5, "text-anchor": anchor,
      }, text));
    this.grid.replaceChildren(...across, ...below);
  }

  agoAt(x) {
    const width = this.cursor.clientWidth - EDGE.left - EDGE.right;
    const ago = Math.round((1 - (x - EDGE.left) / width) * (this.span - 1));
    return ago >= 0 && ago < this.span ? ago : null;
  }

  key(event) {
    if (event.key === "Escape") this.point(null);
    else if (event.key in KEYS) {
      event.preventDefault();
      this.point(Math.min(Math.max((this.ago ?? 0) + KEYS[event.key], 0), this.span - 1));
    } else return;
    this.say();
  }

  // Put the cursor `ago` seconds back; the legend has that second's values, else those of now.
  point(ago) {
    this.ago = ago;
    this.rule.setAttribute("visibility", ago === null ? "hidden" : "visible");
    if (ago !== null && this.x) {
      this.rule.setAttribute("x1", this.x(ago));
      this.rule.setAttribute("x2", this.x(ago));
    }
    this.when.textContent = ago === null ? "" : `${ago} s ago`;
    this.lines.forEach(([name], at) => {
      this.values[at].textContent = this.format(this.valueOf(name));
    });
  }

  valueOf(name) {
    return this.ago === null ? this.now?.[name] : this.series[name]?.at(-1 - this.ago);
  }

  // Only when somebody moves the cursor: a value that changes by itself would be read out.
  say() {
    const values = this.lines.map(([name, label]) => `${label} ${this.format(this.valueOf(name))}`);
    this.cursor.setAttribute("aria-valuenow", -(this.ago ?? 0));
    const when = this.ago === null ? "now" : `${this.ago} seconds ago`;
    this.cursor.setAttribute("aria-valuetext", `${when}: ${values.join(", ")}`);
  }

  fillTable() {
    const heads = ["Seconds ago", ...this.lines.map(([, label]) => label)];
    const length = this.series[this.lines[0][0]]?.length ?? 0;
    const rows = [];
    for (let ago = 0; ago < length; ago += TABLE_STEP_S) {
      const values = this.lines.map(([name]) => this.format(this.series[name].at(-1 - ago)));
      rows.push([String(ago), ...values]);
    }
    const columns = heads.map((text) => ({ text, number: true }));
    this.rows.replaceChildren(table(`${this.title}, every ${TABLE_STEP_S} seconds`, columns, rows));
  }
}
