// The last errors, the newest first; the same one many times over is one line.

import { make, table } from "./dom.js";
import { clock } from "./format.js";

const HEADS = [
  "Time", { text: "Times", number: true }, "Code", "Model", "Transport", "Request id", "Detail",
];

export function showErrors(element, errors) {
  if (!errors.length) {
    element.replaceChildren(make("p", { class: "soft" }, "None in the last five minutes."));
    return;
  }
  const rows = together(errors).map(({ error, times }) => [
    clock(error.at_s), String(times), make("span", { class: "bad" }, error.code),
    [error.model || "–", error.version].join("\u00a0"), error.transport,
    make("code", {}, error.request_id || "–"), error.detail,
  ]);
  element.replaceChildren(table("Errors, the newest first", HEADS, rows));
}

function together(errors) {
  const groups = new Map();
  for (const error of errors) {
    const key = JSON.stringify([error.code, error.model, error.version, error.transport, error.detail]);
    const times = (groups.get(key)?.times ?? 0) + 1;
    groups.delete(key); // so that it comes last: the groups are in the order of their last error
    groups.set(key, { error, times });
  }
  return [...groups.values()].reverse();
}
