// A request as a form edits it: what is not touched is sent as it was read, also fields that the form does not know.

/** @typedef {ReturnType<typeof readItem>} DraftItem */

export const EFFORTS = Object.freeze(["none", "minimal", "low", "medium", "high", "xhigh", "max"]);
/** Where the text of an item stands, the first that is there. An item may be a text itself. */
const TEXT_PATHS = [[], ["content"], ["content", 0, "text"], ["output"], ["arguments"], ["input"]];

/** Returns the form of a request, without its model. @param {Json} request */
export function readDraft(request) {
  const { model, instructions, input, tools, text, reasoning, stream, ...rest } = request;
  const { format, ...otherText } = text ?? {};
  const { effort, ...otherReasoning } = reasoning ?? {};
  const others = {
    ...rest,
    instructions: typeof instructions === "string" ? undefined : instructions,
    text: format === undefined ? text : orNothing(otherText),
    reasoning: typeof effort === "string" ? orNothing(otherReasoning) : reasoning,
  };
  return {
    instructions: typeof instructions === "string" ? instructions : "",
    items: (typeof input === "string" ? [input] : listInput(input)).map(readItem),
    tools: write(tools),
    format: write(format),
    effort: typeof effort === "string" ? effort : "",
    rest: write(orNothing(others)),
  };
}

/** Returns the fields that have a value; nothing, if none has one. @type {(fields: Json) => Json | undefined} */
function orNothing(fields) {
  const known = Object.entries(fields).filter(([, value]) => value !== undefined);
  return known.length === 0 ? undefined : Object.fromEntries(known);
}

/** Returns the items of an input. @type {(input: unknown) => unknown[]} */
export function listInput(input) {
  if (Array.isArray(input)) return input;
  return input === undefined ? [] : [{ role: "user", content: input }];
}

/** Returns the form of an item: its text, or the whole item as JSON. @param {any} value */
export function readItem(value) {
  const parts = value?.["content"];
  const single = !Array.isArray(parts) || parts.length === 1;
  const path = TEXT_PATHS.find((steps) => single && typeof findValue(value, steps) === "string");
  const text = path === undefined ? write(value) : findValue(value, path);
  const label =
    typeof value === "string" ? "user" : `${value?.["role"] ?? value?.["type"] ?? "item"} ${value?.["name"] ?? ""}`;
  return { value, path, text, label: label.trim() };
}

/** @type {(value: any, path: (string | number)[]) => any} */
function findValue(value, path) {
  return path.reduce((inner, step) => inner?.[step], value);
}

/**
 * Returns the request of a form. Throws a `SyntaxError` that names a field which is no JSON.
 * @param {Draft} draft
 * @returns {Json}
 */
export function buildRequest({ instructions, items, tools, format, effort, rest }) {
  /** @type {Json} */
  const body = { ...parse("Other fields", rest) };
  if (instructions !== "") body["instructions"] = instructions;
  const input = items.map(buildItem);
  const only = input.length === 1 ? input[0] : null;
  body["input"] =
    typeof only === "string" ? only : input.flatMap((item) => (typeof item === "string" ? listInput(item) : [item]));
  if (tools !== "") body["tools"] = parse("Tools", tools);
  if (format !== "") body["text"] = { ...body["text"], format: parse("Format", format) };
  if (effort !== "") body["reasoning"] = { ...body["reasoning"], effort };
  return { ...body, stream: true };
}

/** @param {DraftItem} item @param {number} i @returns {unknown} */
function buildItem({ value, path, text }, i) {
  return path === undefined ? parse(`Item ${i}`, text) : setValue(value, path, text);
}

/** Returns a value with another one at a path that it has. @type {(value: any, path: (string | number)[], text: string) => any} */
function setValue(value, [step, ...path], text) {
  if (step === undefined) return text;
  const copy = Array.isArray(value) ? [...value] : { ...value };
  copy[step] = setValue(copy[step], path, text);
  return copy;
}

/** Calls that a client answers with a text. */
const ANSWERED = new Set(["function_call", "custom_tool_call"]);

/** Returns the calls of a response that wait for an answer. @type {(items: Json[]) => Json[]} */
export function listCalls(items) {
  return items.filter((item) => ANSWERED.has(item["type"]) && typeof item["call_id"] === "string");
}

/** Returns the request that goes on after a response, with an answer for each of its calls. @type {(body: Json, items: Json[], answers: string[]) => Json} */
export function continueRequest(body, items, answers) {
  const outputs = listCalls(items).map((call, i) => ({
    type: `${call["type"]}_output`,
    call_id: call["call_id"],
    output: answers[i] ?? "",
  }));
  return { ...body, input: [...listInput(body["input"]), ...items, ...outputs] };
}

/** @type {(name: string, text: string) => any} */
function parse(name, text) {
  try {
    return text.trim() === "" ? undefined : JSON.parse(text);
  } catch {
    throw new SyntaxError(`${name}: this is no JSON.`);
  }
}

/** @type {(value: unknown) => string} */
function write(value) {
  return value === undefined ? "" : JSON.stringify(value, null, 2);
}
