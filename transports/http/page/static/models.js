// Which models are served, in which versions, and how.

import { make, table } from "./dom.js";
import { amount } from "./format.js";

export async function fetchModels() {
  const answer = await fetch("/v1/models");
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  return answer.json();
}

export function showModels(element, { models, refused }) {
  const parts = [models.length ? modelTable(models) : make("p", { class: "soft" }, "None yet.")];
  parts.push(...models.map(properties));
  if (refused.length) parts.push(make("h3", {}, "Not served"), refusedTable(refused));
  element.replaceChildren(...parts);
}

function modelTable(models) {
  const heads = [
    "Model", "Version", "Labels", "Plan", "Device", "Ids without a row", "When it fails",
    { text: "Rows a batch, at most", number: true }, { text: "Rows a request, at most", number: true },
  ];
  const rows = models.map(({ properties: told, ...spec }) => [
    spec.name, spec.version, told.labels ?? "–", told.plan ?? "–", told.device ?? "–",
    told.ids?.replace(/^\*=/, "") ?? "–", told["scheduler.on_failure"] ?? "–",
    amount(spec.max_batch_rows), amount(spec.max_request_rows),
  ]);
  return table("Models and versions", heads, rows);
}

function properties(spec) {
  const rows = Object.entries(spec.properties).map(([name, value]) => [name, value]);
  return make("details", {},
    make("summary", {}, `Everything about ${spec.name} ${spec.version}`),
    table(`Properties of ${spec.name} ${spec.version}`, ["Property", "Value"], rows));
}

function refusedTable(refused) {
  const rows = refused.map(({ model, version, reason }) => [model, version || "all", reason]);
  return table("Versions that are not served", ["Model", "Version", "Why"], rows);
}
