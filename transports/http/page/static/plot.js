// What Chart.js draws: lines over the last seconds, a rule and a dot on each line at the cursor.

import { make } from "./dom.js";
import { onRecolour, theme } from "./theme.js";

const MINUTE_S = 60;
// Room for the longest mark, so that the charts of a column stay in line with each other.
const MARKS_WIDTH = 56;
// Told apart without their colours too; charts.css has the same for the legend.
const DASHES = [[], [6, 4], [1.5, 4]];

// Is Chart.js there? It is a file of the server's package chartkick.
export function drawable() {
  return typeof globalThis.Chart === "function";
}

export class Plot {
  // `labels` name the lines; `format` writes a mark; `whole`: marks between numbers say nothing.
  constructor(labels, format, whole) {
    this.ago = null;
    this.alone = [];
    this.theme = theme();
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.config = {
      type: "line",
      data: { datasets: labels.map((label, at) => this.line(label, at)) },
      options: { ...OPTIONS, scales: { x: this.seconds(), y: this.values(format, whole) } },
      plugins: [{
        id: "ours",
        beforeDatasetsDraw: (chart) => this.drawRule(chart),
        afterDatasetsDraw: (chart) => this.drawDots(chart),
      }],
    };
  }

  // Begin to draw; the canvas has to be in the document, as its size is that of its parent.
  begin() {
    this.chart = new globalThis.Chart(this.canvas, this.config);
    onRecolour(() => this.recolour());
  }

  // Show `series`, a list of values for each line, the last being the newest.
  show(series) {
    const { datasets } = this.chart.data;
    this.chart.options.scales.x.min = -span(series[0].length);
    series.forEach((values, at) => {
      const first = 1 - values.length;
      datasets[at].data = values.map((y, second) => ({ x: first + second, y }));
    });
    this.alone = series.map(loners);
    this.mark();
    this.chart.update("none");
  }

  // Put the cursor `ago` seconds back, null: nowhere.
  point(ago) {
    if (ago === this.ago) return;
    this.ago = ago;
    this.mark();
    this.chart.draw();
  }

  // Return how many seconds ago `x` is, null where nothing is drawn.
  agoAt(x) {
    const ago = Math.round(-this.chart.scales.x.getValueForPixel(x));
    return ago >= 0 && ago < this.chart.data.datasets[0].data.length ? ago : null;
  }

  mark() {
    const { chart, ago } = this;
    const marked = chart.data.datasets
      .map(({ data }, datasetIndex) => ({ datasetIndex, index: data.length - 1 - ago }))
      .filter(({ datasetIndex, index }) => chart.getDatasetMeta(datasetIndex).data[index]);
    chart.setActiveElements(ago === null ? [] : marked);
  }

  drawRule({ ctx, chartArea, scales }) {
    if (this.ago === null) return;
    const x = scales.x.getPixelForValue(-this.ago);
    ctx.save();
    ctx.strokeStyle = this.theme.soft;
    ctx.lineWidth = 1;
    ctx.beginPath();
    ctx.moveTo(x, chartArea.top);
    ctx.lineTo(x, chartArea.bottom);
    ctx.stroke();
    ctx.restore();
  }

  // Of Chart.js's own dots each would be asked for its size, of three hundred and every second.
  drawDots(chart) {
    const { ctx } = chart;
    ctx.save();
    this.alone.forEach((indices, at) => {
      ctx.fillStyle = this.theme.lines[at];
      for (const index of indices) {
        const { x, y } = chart.getDatasetMeta(at).data[index];
        ctx.beginPath();
        ctx.arc(x, y, 1.5, 0, 2 * Math.PI);
        ctx.fill();
      }
    });
    ctx.restore();
  }

  recolour() {
    this.theme = theme();
    this.chart.data.datasets.forEach((each, at) => Object.assign(each, this.coloured(at)));
    this.chart.update("none");
  }

  line(label, at) {
    return {
      label, data: [], borderDash: DASHES[at], fill: at === 0 ? "origin" : false,
      backgroundColor: ({ chart }) => this.shade(chart), ...this.coloured(at),
    };
  }

  // No functions: Chart.js would call them for every point.
  coloured(at) {
    const { lines, card } = this.theme;
    return { borderColor: lines[at], pointBackgroundColor: lines[at], pointBorderColor: card };
  }

  // Below the first line, fading away.
  shade({ ctx, chartArea }) {
    if (!chartArea) return "transparent";
    const fading = ctx.createLinearGradient(0, chartArea.top, 0, chartArea.bottom);
    fading.addColorStop(0, this.theme.area);
    fading.addColorStop(1, this.theme.areaEnd);
    return fading;
  }

  seconds() {
    return {
      ...this.axis(),
      type: "linear", min: -MINUTE_S, max: 0,
      ticks: {
        stepSize: MINUTE_S, align: "inner", autoSkip: false, maxRotation: 0, padding: 6,
        color: () => this.theme.soft, callback: minutes,
      },
    };
  }

  values(format, whole) {
    return {
      ...this.axis(),
      beginAtZero: true,
      ticks: {
        maxTicksLimit: 5, padding: 8, precision: whole ? 0 : undefined,
        color: () => this.theme.soft, callback: (value) => format(value),
      },
      afterFit: (scale) => { scale.width = Math.max(scale.width, MARKS_WIDTH); },
    };
  }

  axis() {
    return { border: { display: false }, grid: { drawTicks: false, color: () => this.theme.grid } };
  }
}

const OPTIONS = {
  animation: false,
  events: [], // the cursor is the page's: keys move it too
  maintainAspectRatio: false,
  normalized: true,
  parsing: false,
  font: { size: 11, family: "system-ui, sans-serif" },
  plugins: { colors: { enabled: false }, legend: { display: false }, tooltip: { enabled: false } },
  elements: {
    line: { borderWidth: 1.75, borderCapStyle: "round", borderJoinStyle: "round" },
    point: { radius: 0, borderWidth: 0, hoverBorderWidth: 2, hoverRadius: 4.5 },
  },
};

// Whole minutes, so that the marks stay where they are while the lines move.
function span(length) {
  return Math.max(MINUTE_S, Math.ceil(length / MINUTE_S) * MINUTE_S);
}

// Return where the values are that have none beside them: a line needs two.
function loners(values) {
  const known = (at) => typeof values[at] === "number";
  return [...values.keys()].filter((at) => known(at) && !known(at - 1) && !known(at + 1));
}

function minutes(value, at) {
  if (value === 0) return "now";
  return at === 0 ? `${-value / MINUTE_S} min` : String(-value / MINUTE_S);
}
