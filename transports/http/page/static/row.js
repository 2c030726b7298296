// One row of a DLRM's request: its numbers, and a list of ids for each feature.

export function layout(spec) {
  const dense = spec.inputs.find((each) => each.name === "float_features");
  const lengths = spec.inputs.find((each) => each.name === "id_list_features.lengths");
  if (!lengths) return null; // no DLRM
  const width = dense ? Number(dense.shape[1]) || 0 : 0;
  const named = (_, at) => dense.labels[at] ?? `number ${at}`;
  return { columns: Array.from({ length: width }, named), features: lengths.labels };
}

// Return the first row that `example` asks about; what it does not say is 0 and empty.
export function firstRow(example, { columns, features }) {
  const context = example?.context ?? {};
  const numbers = new Array(columns.length).fill(0);
  const shared = context.float_features ?? [];
  const places = context.float_columns ?? shared.map((_, at) => at);
  places.forEach((column, at) => { numbers[column] = shared[at]; });
  const left = numbers.map((_, at) => at).filter((at) => !places.includes(at));
  const own = example?.float_features?.[0];
  left.forEach((column, at) => { numbers[column] = Array.isArray(own) ? own[at] ?? 0 : 0; });
  const bags = features.map((name) => {
    const bag = context.id_list_features?.[name] ?? example?.id_list_features?.[name]?.[0];
    return Array.isArray(bag) ? bag : [];
  });
  return { numbers, bags };
}

// Return the JSON text of a request. Ids stay the digits they are: JavaScript's numbers end at
// 2^53, and ids do not.
export function requestText({ columns, features }, numbers, bags) {
  const ids = features.map((name, at) => `${JSON.stringify(name)}: [[${written(bags[at])}]]`);
  const dense = columns.length ? `"float_features": [[${numbers.map(number).join(", ")}]], ` : "";
  return `{${dense}"id_list_features": {${ids.join(", ")}}}`;
}

function number(text) {
  return JSON.stringify(Number(text)); // what is no number becomes null, and is refused by name
}

function written(text) {
  const items = text.split(/[\s,]+/).filter((item) => item !== "");
  return items.map((item) => (/^-?(0|[1-9]\d*)$/.test(item) ? item : JSON.stringify(item))).join(", ");
}
