// One chart of the last minutes: what is drawn, a legend with values, a cursor for pointer and keys,
// and the same figures as a table.

import { make, table } from "./dom.js";
import { drawable, Plot } from "./plot.js";

const MOST_S = 300;
const TABLE_STEP_S = 10;
const KEYS = { ArrowLeft: 1, ArrowRight: -1, PageUp: 30, PageDown: -30, Home: MOST_S, End: -MOST_S };
const MISSING = "Not drawn: this server's environment lacks Chart.js, which the package chartkick"
  + " brings. The table has the figures.";

export class Chart {
  // `lines` are [name in the series, label]; `format` writes a value with its unit; `whole`: of
  // what is counted, so only whole numbers are marks.
  constructor(title, lines, format, whole = false) {
    this.title = title;
    this.lines = lines;
    this.format = format;
    this.series = {};
    this.ago = null; // seconds that the cursor is back, null: none
    this.plot = drawable() ? new Plot(lines.map(([, label]) => label), format, whole) : null;
    this.values = lines.map(() => make("b"));
    this.when = make("span", { class: "soft when" });
    this.rows = make("div");
    this.details = make("details", { toggle: () => this.fillTable() },
      make("summary", {}, "Table"), this.rows);
    this.cursor = this.plot ? this.madeCursor() : make("p", { class: "bad" }, MISSING);
    this.element = this.madeElement();
  }

  madeCursor() {
    return make("div", {
      class: "plot", tabindex: 0, role: "slider",
      "aria-label": `${this.title}: time`, "aria-orientation": "horizontal",
      "aria-valuemin": -MOST_S, "aria-valuemax": 0, "aria-valuenow": 0, "aria-valuetext": "now",
      keydown: (event) => this.key(event),
      pointermove: (event) => this.point(this.plot.agoAt(event.offsetX)),
      pointerleave: () => this.point(null),
      blur: () => this.point(null),
    }, this.plot.canvas);
  }

  madeElement() {
    const legend = this.lines.map(([, label], at) =>
      make("li", {},
        make("i", { class: `sample line${at}`, "aria-hidden": "true" }), `${label} `, this.values[at]));
    return make("figure", { class: "card chart" },
      make("figcaption", {}, make("h3", {}, this.title), this.when),
      make("ul", { class: "legend" }, ...legend), this.cursor, this.details);
  }

  // Begin to draw, once the element is in the document.
  begin() {
    this.plot?.begin();
  }

  // Show `series` (lists by name, the last value being the newest) and the figures of `now`.
  show(series, now) {
    this.series = series;
    this.now = now ?? {};
    this.plot?.show(this.lines.map(([name]) => (series[name] ?? []).slice(-MOST_S)));
    this.point(this.ago);
    if (this.details.open) this.fillTable();
  }

  length() {
    return Math.min(this.series[this.lines[0][0]]?.length ?? 0, MOST_S);
  }

  key(event) {
    if (event.key === "Escape") this.point(null);
    else if (event.key in KEYS && this.length()) {
      event.preventDefault();
      this.point(Math.min(Math.max((this.ago ?? 0) + KEYS[event.key], 0), this.length() - 1));
    } else return;
    this.say();
  }

  // Put the cursor `ago` seconds back; the legend has that second's values, else those of now.
  point(ago) {
    this.ago = ago;
    this.plot?.point(ago);
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
    const rows = [];
    for (let ago = 0; ago < this.length(); ago += TABLE_STEP_S) {
      const values = this.lines.map(([name]) => this.format(this.series[name].at(-1 - ago)));
      rows.push([String(ago), ...values]);
    }
    const columns = heads.map((text) => ({ text, number: true }));
    this.rows.replaceChildren(table(`${this.title}, every ${TABLE_STEP_S} seconds`, columns, rows));
  }
}
