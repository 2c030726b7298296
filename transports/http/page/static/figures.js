// The figures of now, and the charts of the last minutes.

import { Chart } from "./chart.js";
import { make } from "./dom.js";
import { amount, milliseconds, rate } from "./format.js";

const TILES = [
  ["requests_per_s", "Requests", rate],
  ["rows_per_s", "Rows computed", rate],
  ["p50_ms", "Latency, median", milliseconds],
  ["p99_ms", "Latency, p99", milliseconds],
  ["batch_rows", "Rows a batch", amount],
  ["errors_per_s", "Errors", rate],
];

export class Figures {
  constructor(tiles, charts) {
    this.values = TILES.map(() => make("dd", {}, "–"));
    tiles.append(...TILES.map(([, label], at) =>
      make("div", { class: "card" }, make("dt", {}, label), this.values[at])));
    this.charts = [
      new Chart("Throughput", [["requests_per_s", "requests"], ["errors_per_s", "errors"]], rate),
      new Chart("Latency", [["p50_ms", "p50"], ["p95_ms", "p95"], ["p99_ms", "p99"]], milliseconds),
      new Chart("Batch size", [["batch_rows", "rows"], ["batch_requests", "requests"]], amount, true),
      new Chart("Queue depth", [["waiting_rows", "rows waiting"]], amount, true),
    ];
    charts.append(...this.charts.map((chart) => chart.element));
    for (const chart of this.charts) chart.begin();
  }

  show(live) {
    TILES.forEach(([name, , format], at) => {
      this.values[at].textContent = format(live.now[name]);
    });
    for (const chart of this.charts) chart.show(live.series, live.now);
  }
}
