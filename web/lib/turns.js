// Turns as `/v1/inspect/turns` answers them, and their parts, in the form that views show. Missing values are null: a
// server that records nothing, or an older one, has fewer.

/** Causes that are a fault, of the model or of the server. A turn with one of them is marked by a sign and in words. */
const FAULTS = [
  ...["stopped_in_call", "call_cannot_complete", "compaction_empty", "rejected", "engine_fault", "store_unavailable"],
  ...["server_restarted", "server_bug", "deadline"],
];
/** Causes that cut a turn off. */
const CUTS = [
  ...["max_output_tokens", "context_full", "repetition", "max_tool_calls", "client_left", "cancelled", "steered"],
  ...["server_shutdown"],
];

export const CAUSES = Object.freeze([
  ...["stop_token", "stop_string", "single_call", "nothing_generated", "compacted"],
  ...CUTS,
  ...FAULTS,
]);
export const STATUSES = Object.freeze(["in_progress", "completed", "incomplete", "failed", "cancelled", "queued"]);
export const APIS = Object.freeze(["responses", "chat", "completions", "messages", "compact"]);

/** @type {(json: Json) => Turn} */
export function readTurn(json) {
  const ending = json["ending"];
  return {
    id: text(json["id"]),
    at: date(json["created_at"]),
    api: text(json["api"]),
    model: text(json["model"]),
    status: text(json["status"]),
    cause: text(ending?.cause),
    detail: text(ending?.detail),
    sentence: text(json["description"]),
    input: count(json["input_tokens"]),
    cached: count(json["cached_tokens"]),
    output: count(json["output_tokens"]),
    seconds: count(json["seconds"]),
    tools: listOf(json["tools"]).map(text),
    excerpt: text(json["excerpt"]),
    notes: listOf(json["unoffered_calls"])
      .slice(0, 5)
      .map((call) => text(call?.description)),
  };
}

/** Returns a sign and words for how a turn ended, or that it runs. @type {(turn: Turn) => {sign: string, words: string, kind: string}} */
export function describeEnding(turn) {
  if (turn.cause === "") {
    const runs = turn.status === "in_progress" || turn.status === "queued";
    return { sign: runs ? "▶" : "○", words: runs ? "running" : turn.status.replaceAll("_", " "), kind: "open" };
  }
  const words = turn.cause.replaceAll("_", " ");
  if (FAULTS.includes(turn.cause)) return { sign: "■", words, kind: "bad" };
  return CUTS.includes(turn.cause) ? { sign: "◐", words, kind: "cut" } : { sign: "●", words, kind: "good" };
}

/** Returns the query of a list for the filters that are set. @type {(filters: Record<string, string>, after: string) => string} */
export function listQuery(filters, after) {
  const fields = Object.entries(filters).filter(([, value]) => value !== "");
  if (after !== "") fields.push(["after", after]);
  return new URLSearchParams([["limit", "50"], ...fields]).toString();
}

/** @type {(value: number | null) => string} */
export function formatCount(value) {
  return value === null ? "–" : value.toLocaleString("en");
}

/** @type {(seconds: number | null) => string} */
export function formatSeconds(seconds) {
  if (seconds === null) return "–";
  return seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
}

/** @type {[string, string, string][]} */
const PHASES = [
  ["queue", "submitted", "admitted"],
  ["prefill", "admitted", "first_token"],
  ["decode", "first_token", "last_token"],
];

/** Returns the phases of a turn whose begin and end are known, in seconds. @param {any} times_ms @returns {[string, number][]} */
export function listPhases(times_ms) {
  return PHASES.flatMap(([name, from, to]) => {
    const [start, end] = [count(times_ms?.[from]), count(times_ms?.[to])];
    return start === null || end === null ? [] : [[name, (end - start) / 1000]];
  });
}

/**
 * Returns the tokens a second of a turn's decoding, if both are known.
 * @param {Turn} turn
 * @param {[string, number][]} phases
 */
export function decodeRate(turn, phases) {
  const seconds = phases.find(([name]) => name === "decode")?.[1] ?? 0;
  return turn.output === null || seconds <= 0 ? null : turn.output / seconds;
}

/** Returns what a finding says, in one line. @type {(finding: Json) => string} */
export function describeFinding(finding) {
  const { code, subject, expected, actual } = finding;
  const facts = [
    expected === undefined ? "" : `expected ${text(expected)}`,
    actual === undefined ? "" : `found ${text(actual)}`,
  ];
  return [text(code), text(subject), facts.filter(Boolean).join(", ")].filter(Boolean).join(": ");
}

/** @type {(value: unknown) => string} */
export function text(value) {
  return value === undefined || value === null ? "" : String(value);
}

/** @type {(value: unknown) => number | null} */
export function count(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

/** @type {(value: unknown) => Date | null} */
function date(value) {
  const parsed = typeof value === "number" ? new Date(value * 1000) : new Date(text(value));
  return Number.isNaN(parsed.getTime()) ? null : parsed;
}

/** Returns the value of a JSON text, or null for another text. @type {(text: string) => {value: unknown} | null} */
export function readJson(text) {
  try {
    return { value: JSON.parse(text) };
  } catch {
    return null;
  }
}

/** Returns why a part is missing; null for a part that is there. @type {(value: unknown) => string | null} */
export function readMissing(value) {
  if (typeof value !== "object" || value === null || Object.keys(value).join() !== "missing") return null;
  const reason = /** @type {{missing: unknown}} */ (value).missing;
  return typeof reason === "string" ? reason : null;
}

/** Returns the text of an item: that of its parts, or what a call says. @type {(item: Record<string, any>) => string} */
export function itemText(item) {
  const parts = [...listOf(item["content"]), ...listOf(item["summary"])];
  if (parts.length > 0) return parts.map((part) => part?.["text"] ?? part?.["refusal"] ?? "").join("\n");
  const texts = [item["name"], item["content"], item["arguments"] ?? item["input"] ?? item["output"]];
  return texts.filter((text) => typeof text === "string").join(" ");
}

/** Returns the items of a response. @type {(response: Record<string, any> | null) => Record<string, any>[]} */
export function listItems(response) {
  return listOf(response?.["output"]).filter((item) => typeof item === "object" && item !== null);
}

/** @type {(value: unknown) => any[]} */
function listOf(value) {
  return Array.isArray(value) ? value : [];
}
