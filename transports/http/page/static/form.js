// A request to any model: one row in a form made from its spec, or JSON as it is sent.

import { make, table } from "./dom.js";
import { score } from "./format.js";
import { predict, spent } from "./predict.js";
import { firstRow, layout, requestText } from "./row.js";

export class RequestForm {
  // `example` is JSON text, "" if there is none.
  constructor(spec, version, example) {
    this.spec = spec;
    this.version = version;
    this.note = make("p", { role: "status" });
    this.result = make("div");
    this.plan = layout(spec);
    const parts = this.plan ? [this.rowForm(parsed(example))] : [];
    parts.push(this.jsonForm(example, !this.plan));
    this.element = make("div", {}, ...parts, this.note, this.result);
  }

  rowForm(example) {
    const { numbers, bags } = firstRow(example, this.plan);
    this.numbers = numbers.map((value) =>
      make("input", { type: "number", step: "any", value: String(value) }));
    this.bags = bags.map((bag) => make("input", { type: "text", inputmode: "numeric", value: bag.join(", ") }));
    const groups = [];
    if (this.numbers.length) groups.push(fields("Numbers", this.plan.columns, this.numbers));
    groups.push(fields("Ids, separated by commas", this.plan.features, this.bags));
    const submit = (event) => {
      event.preventDefault();
      const text = requestText(this.plan, values(this.numbers), values(this.bags));
      this.json.value = text;
      this.ask(text);
    };
    return make("form", { submit, novalidate: true }, ...groups, make("button", { type: "submit" }, "Score this row"));
  }

  jsonForm(example, open) {
    this.json = make("textarea", { rows: 8, spellcheck: "false" });
    this.json.value = example;
    const submit = (event) => {
      event.preventDefault();
      this.ask(this.json.value);
    };
    return make("details", { open }, make("summary", {}, "The request as JSON"),
      make("form", { submit },
        make("label", { class: "tall" }, "JSON", this.json), make("button", { type: "submit" }, "Send")));
  }

  async ask(text) {
    try {
      this.show(await predict(this.spec.name, this.version, text));
    } catch (error) {
      this.note.textContent = error.message;
      this.result.replaceChildren();
    }
  }

  show(answer) {
    const outputs = Object.entries(answer.predictions);
    const count = outputs[0]?.[1].length ?? 0;
    this.note.textContent = spent(answer, count, "row");
    const heads = ["Row", ...outputs.map(([name]) => name)].map((text) => ({ text, number: true }));
    const rows = Array.from({ length: count }, (_, at) =>
      [String(at), ...outputs.map(([, scores]) => text(scores[at]))]);
    this.result.replaceChildren(table("Scores", heads, rows));
  }
}

function fields(legend, names, inputs) {
  const labels = names.map((name, at) => make("label", {}, name, inputs[at]));
  return make("fieldset", {}, make("legend", {}, legend), make("div", { class: "fields" }, ...labels));
}

function values(inputs) {
  return inputs.map((input) => input.value);
}

function text(value) {
  return typeof value === "number" ? score(value) : JSON.stringify(value);
}

function parsed(example) {
  try {
    return JSON.parse(example);
  } catch {
    return null; // none, or not ours to read: the server will say what is wrong with it
  }
}
