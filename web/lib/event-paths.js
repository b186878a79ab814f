// Where each kind of event writes in the response. The names of fields come from here, never from an event.

/** @type {(list: string, index: string, field: string) => (event: Record<string, unknown>) => Step[]} */
const inPart = (list, index, field) => (event) => [list, position(event[index]), field];

/** @type {Record<string, TextStream>} */
const STREAMS = {
  "response.output_text": { path: inPart("content", "content_index", "text"), whole: "text" },
  "response.refusal": { path: inPart("content", "content_index", "refusal"), whole: "refusal" },
  "response.reasoning_text": { path: inPart("content", "content_index", "text"), whole: "text" },
  "response.reasoning_summary_text": { path: inPart("summary", "summary_index", "text"), whole: "text" },
  "response.function_call_arguments": { path: () => ["arguments"], whole: "arguments" },
  "response.mcp_call_arguments": { path: () => ["arguments"], whole: "arguments" },
  "response.custom_tool_call_input": { path: () => ["input"], whole: "input" },
  "response.code_interpreter_call_code": { path: () => ["code"], whole: "code" },
  "response.apply_patch_call_operation_diff": { path: () => ["operation", "diff"], whole: "diff" },
  "response.shell_call_command": {
    path: (event) => ["action", "commands", position(event["command_index"])],
    whole: "command",
  },
};
export const TEXT_STREAMS = new Map(Object.entries(STREAMS));

const LIFE_CYCLE = new Set(
  ["created", "queued", "in_progress", "completed", "incomplete", "failed"].map((stage) => `response.${stage}`),
);
const TERMINAL = new Set(["response.completed", "response.incomplete", "response.failed"]);
/** An index above this one is damage: a list with as many places would fill the memory. */
const MAX_POSITION = 1_000_000;

/**
 * Returns what an event does. Throws a `RangeError` for one that names no place in a response.
 * @param {Record<string, unknown>} event
 * @returns {Change}
 */
export function readChange(event) {
  const type = String(event["type"]);
  if (LIFE_CYCLE.has(type)) return { kind: "response", terminal: TERMINAL.has(type) };
  if (type === "response.output_item.added" || type === "response.output_item.done") {
    return { kind: "set", path: itemPath(event), value: event["item"] };
  }
  if (type === "response.content_part.added" || type === "response.content_part.done") {
    return {
      kind: "set",
      path: [...itemPath(event), "content", position(event["content_index"])],
      value: event["part"],
    };
  }
  if (type === "response.reasoning_summary_part.added" || type === "response.reasoning_summary_part.done") {
    return {
      kind: "set",
      path: [...itemPath(event), "summary", position(event["summary_index"])],
      value: event["part"],
    };
  }
  if (type === "response.output_text.annotation.added") {
    const steps = ["content", position(event["content_index"]), "annotations", position(event["annotation_index"])];
    return { kind: "set", path: [...itemPath(event), ...steps], value: event["annotation"] };
  }
  return readTextChange(event, type);
}

/** @type {(event: Record<string, unknown>, type: string) => Change} */
function readTextChange(event, type) {
  const stream = type.slice(0, type.lastIndexOf("."));
  const known = TEXT_STREAMS.get(stream);
  if (known === undefined) return { kind: "none" };
  const path = [...itemPath(event), ...known.path(event)];
  if (type.endsWith(".delta")) {
    const logprobs = Array.isArray(event["logprobs"]) ? event["logprobs"] : [];
    return { kind: "append", stream, path, text: String(event["delta"]), logprobs };
  }
  const text = String(event[known.whole]);
  if (type.endsWith(".added")) return { kind: "set", path, value: text };
  return type.endsWith(".done") ? { kind: "text", stream, path, text, logprobs: event["logprobs"] } : { kind: "none" };
}

/** @type {(event: Record<string, unknown>) => Step[]} */
function itemPath(event) {
  return ["output", position(event["output_index"])];
}

/** @type {(value: unknown) => number} */
function position(value) {
  if (typeof value === "number" && Number.isInteger(value) && value >= 0 && value < MAX_POSITION) return value;
  throw new RangeError(`${JSON.stringify(value) ?? "undefined"} is no position in a list`);
}

/** Returns a path in the form that people write: output[1].arguments. @type {(path: Step[]) => string} */
export function formatPath(path) {
  return path
    .map((step) => (typeof step === "number" ? `[${step}]` : `.${step}`))
    .join("")
    .replace(/^\./, "");
}
