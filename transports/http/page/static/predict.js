// Ask a model: the inference listener's own route, by way of this listener.

import { milliseconds, plural } from "./format.js";

// `body` is JSON text, `version` "" for whichever the routes choose. Returns the predictions by output,
// and what was spent where.
export async function predict(model, version, body) {
  const begun = performance.now();
  const named = version ? `/versions/${encodeURIComponent(version)}` : "";
  const answer = await fetch(`/page/v1/models/${encodeURIComponent(model)}${named}/predict`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-narsil-page": "1" },
    body,
  });
  const said = await answer.json();
  const tookMs = performance.now() - begun;
  if (!answer.ok) throw new Error(said.detail);
  return { ...said, tookMs, server: timing(answer.headers.get("server-timing") ?? "") };
}

// "a;dur=1.5, b;dur=2" as [["a", 1.5], ["b", 2]].
function timing(header) {
  return [...header.matchAll(/(\w+);dur=([\d.]+)/g)].map(([, name, ms]) => [name, Number(ms)]);
}

export function spent(answer, count, one) {
  const parts = answer.server.map(([name, ms]) => `${name} ${milliseconds(ms)}`);
  const by = `by version ${answer.version} in ${milliseconds(answer.tookMs)}`;
  return `${plural(count, one)} scored ${by} (${parts.join(", ")})`;
}
