// Make elements. Text goes in as text: what a model, a movie or an error is called is never markup.

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// A table that scrolls by itself where it is too wide; keys move it, so it can have the focus.
// `heads` are texts or {text, number: true}; each row is a list of texts or elements.
export function table(caption, heads, rows) {
  const numbers = heads.map((head) => head.number === true);
  const titles = heads.map((head, at) =>
    make("th", { scope: "col", class: numbers[at] ? "number" : undefined }, head.text ?? head));
  const lines = rows.map((row) =>
    make("tr", {}, ...row.map((cell, at) =>
      make("td", { class: numbers[at] ? "number" : undefined }, cell))));
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    make("table", {},
      make("caption", { class: "unseen" }, caption),
      make("thead", {}, make("tr", {}, ...titles)),
      make("tbody", {}, ...lines)));
}

export function options(select, pairs) {
  const chosen = select.value;
  select.replaceChildren(...pairs.map(([value, text]) => make("option", { value }, text)));
  if (pairs.some(([value]) => value === chosen)) select.value = chosen;
}
