// The page's colours for what is drawn on a canvas, where style sheets do not reach.

const SCHEMES = [
  "(prefers-color-scheme: dark)", "(prefers-contrast: more)", "(forced-colors: active)",
];

export function theme() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    lines: [colour("line0"), colour("line1"), colour("line2")],
    area: colour("area"),
    areaEnd: colour("area-end"),
    soft: colour("soft"),
    grid: colour("grid"),
    card: colour("card"),
  };
}

// Call `changed` whenever the colours are others.
export function onRecolour(changed) {
  for (const scheme of SCHEMES) matchMedia(scheme).addEventListener("change", changed);
}
