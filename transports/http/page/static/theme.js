// The page's colours for what is drawn on a canvas, where style sheets do not reach.

import { make } from "./dom.js";

const SCHEMES = [
  "(prefers-color-scheme: dark)", "(prefers-contrast: more)", "(forced-colors: active)",
];

// As an element has them: a canvas itself takes the system's names of colours for others.
export function theme() {
  const probe = document.body.appendChild(make("i", { class: "probe", hidden: true }));
  const style = getComputedStyle(probe);
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return style.color;
  };
  const found = {
    lines: [colour("line0"), colour("line1"), colour("line2")],
    area: colour("area"),
    areaEnd: colour("area-end"),
    soft: colour("soft"),
    grid: colour("grid"),
    card: colour("card"),
  };
  probe.remove();
  return found;
}

// Call `changed` whenever the colours are others.
export function onRecolour(changed) {
  for (const scheme of SCHEMES) matchMedia(scheme).addEventListener("change", changed);
}
