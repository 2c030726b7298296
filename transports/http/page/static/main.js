// Put the page together: what the server says once a second goes to each part.

import { options } from "./dom.js";
import { showErrors } from "./errors.js";
import { Figures } from "./figures.js";
import { Live } from "./live.js";
import { choices, fetchModels, showModels } from "./models.js";
import { Playground } from "./playground.js";

const at = (id) => document.getElementById(id);
const figures = new Figures(at("tiles"), at("charts"));
const playground = new Playground(at("playground"));
let serving = "";
let models = [];
let errors = "";

// A live region speaks whenever it is written to: only what is new is.
function say(state) {
  if (at("state").textContent === state) return;
  at("state").textContent = state;
  at("state").dataset.state = state;
}

function ask() {
  const [name, version] = JSON.parse(at("asked").value || '["", ""]');
  const asked = (spec) => spec.name === name && (!version || spec.version === version);
  return playground.show(models.find(asked), version);
}

async function follow(live) {
  const now = JSON.stringify(live.serving);
  if (now === serving) return;
  serving = now;
  const described = await fetchModels();
  models = described.models;
  const names = [...new Set(models.map((spec) => spec.name))].map((name) => [name, name]);
  options(at("watched"), [["", "all models"], ...names]);
  options(at("asked"), choices(models).map(([one, text]) => [JSON.stringify(one), text]));
  showModels(at("models"), described);
  await ask();
}

function changed(live) {
  at("server").textContent = live.server;
  say(live.state);
  figures.show(live);
  const known = JSON.stringify(live.errors);
  if (known !== errors) showErrors(at("errors"), live.errors);
  errors = known;
  return follow(live).catch(() => { serving = ""; });
}

const live = new Live(changed, () => say("unreachable"));
showErrors(at("errors"), []);
at("watched").addEventListener("change", (event) => live.watch(event.target.value));
at("asked").addEventListener("change", ask);
at("pause").addEventListener("click", (event) => {
  live.pause(!live.paused);
  event.target.setAttribute("aria-pressed", String(live.paused));
});
