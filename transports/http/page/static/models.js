// Which models are served, in which versions, and how.

import { make, table } from "./dom.js";
import { amount } from "./format.js";

export async function fetchModels() {
  const answer = await fetch("/v1/models");
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  return answer.json();
}

// Who can be asked, as [[model, version], text]: every model by its routes (version ""), and where it
// has several versions, each of them by itself.
export function choices(models) {
  const names = [...new Set(models.map((spec) => spec.name))];
  return names.flatMap((name) => {
    const versions = models.filter((spec) => spec.name === name);
    if (versions.length === 1) return [[[name, ""], name]];
    const each = versions.map((spec) => [[name, spec.version], `${name} ${versioned(spec)}`]);
    return [[[name, ""], `${name}, as it is routed`], ...each];
  });
}

function versioned({ version, properties }) {
  return properties.labels ? `version ${version} (${properties.labels})` : `version ${version}`;
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
