// Numbers as people read them, with their units.

const NONE = "–";
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function amount(value) {
  if (value === null || value === undefined) return NONE;
  return Math.abs(value) >= 1000 ? whole.format(value) : short.format(value);
}

export function milliseconds(value) {
  if (value === null || value === undefined) return NONE;
  return value >= 1000 ? `${short.format(value / 1000)} s` : `${short.format(value)} ms`;
}

export function rate(value) {
  return value === null || value === undefined ? NONE : `${amount(value)}/s`;
}

export function score(value) {
  return Number.isFinite(value) ? value.toFixed(4) : String(value);
}

export function plural(count, one, many = `${one}s`) {
  return `${amount(count)} ${count === 1 ? one : many}`;
}

export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en", { hourCycle: "h23" });
}
