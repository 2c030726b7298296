// The playground of one model: its catalogue if it brings one, and a form in any case.

import { make } from "./dom.js";
import { RequestForm } from "./form.js";
import { Ranking } from "./ranking.js";

export class Playground {
  constructor(element) {
    this.element = element;
    this.turn = 0;
    this.shown = "";
  }

  // Show the playground of `spec`, if another one or none is shown; `version` is whom to ask, "" for
  // whichever the routes choose.
  async show(spec, version) {
    const wanted = spec ? JSON.stringify([spec.name, version, spec.inputs]) : "";
    if (wanted === this.shown) return;
    this.shown = wanted;
    const turn = (this.turn += 1);
    const parts = spec ? await made(spec, version) : [make("p", { class: "soft" }, "No model is served.")];
    if (turn === this.turn) this.element.replaceChildren(...parts);
  }
}

async function made(spec, version) {
  const [catalogue, example] = await Promise.all([beside(spec, "catalogue"), beside(spec, "example")]);
  const form = new RequestForm(spec, version, example).element;
  const ranking = ranked(spec, version, catalogue);
  if (!ranking) return [form];
  return [ranking, make("details", {}, make("summary", {}, "Any other request"), form)];
}

function ranked(spec, version, catalogue) {
  try {
    return catalogue && new Ranking(spec.name, version, JSON.parse(catalogue)).element;
  } catch {
    return null; // a file of that name with something else in it
  }
}

async function beside(spec, what) {
  const answer = await fetch(`/page/models/${encodeURIComponent(spec.name)}/${what}`);
  return answer.status === 200 ? answer.text() : "";
}
