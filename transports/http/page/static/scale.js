// Where a chart's values lie.

// Return the marks of an axis from 0 to at least `largest`: a few round numbers.
// `least` is the smallest step that says anything (1 of what is counted).
export function marks(largest, least = 0, most = 4) {
  const rough = Math.max(largest / most, least, 1e-9);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
  const count = Math.max(1, Math.ceil(largest / step - 1e-9));
  return Array.from({ length: count + 1 }, (_, at) => at * step);
}

// Return the seconds that a chart of `length` of them spans: whole minutes, from one to five.
export function span(length, most) {
  return Math.min(most, Math.max(60, Math.ceil(length / 60) * 60));
}

// Return an SVG path through `values`, broken where one is null; a lone value is a dot.
export function path(values, x, y) {
  let pen = "M";
  const steps = [];
  values.forEach((value, at) => {
    if (value === null) {
      pen = "M";
      return;
    }
    const alone = pen === "M" && (values[at + 1] ?? null) === null;
    steps.push(`${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}${alone ? "h0.1" : ""}`);
    pen = "L";
  });
  return steps.join("");
}
