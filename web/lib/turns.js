// Summaries and records of turns, as `/v1/inspect/turns` answers them, in the form that views show. Missing values are null:
// a server that records nothing, or an older one, has fewer.

/** @typedef {Record<string, any>} Json */
/**
 * @typedef {object} Turn
 * @property {string} id
 * @property {Date | null} at
 * @property {string} api
 * @property {string} model
 * @property {string} status
 * @property {string} cause Why the turn ended; empty while it runs.
 * @property {string} detail
 * @property {number | null} input
 * @property {number | null} cached
 * @property {number | null} output
 * @property {number | null} seconds
 * @property {string[]} tools
 */

/** Causes that are a fault, of the model or of the server. A turn with one of them is marked by a sign and in words. */
const FAULTS = new Set([
  ...["stopped_in_call", "call_cannot_complete", "compaction_empty", "rejected", "engine_fault", "store_unavailable"],
  ...["server_restarted", "server_bug", "deadline"],
]);
/** Causes that cut a turn off. */
const CUTS = new Set([
  ...["max_output_tokens", "context_full", "max_tool_calls", "client_left", "cancelled", "steered", "server_shutdown"],
]);

export const CAUSES = Object.freeze([
  ...["stop_token", "stop_string", "stopped_in_call", "call_cannot_complete", "max_output_tokens", "context_full"],
  ...[
    "max_tool_calls",
    "single_call",
    "nothing_generated",
    "compacted",
    "compaction_empty",
    "client_left",
    "cancelled",
  ],
  ...["steered", "deadline", "rejected", "engine_fault", "store_unavailable", "server_shutdown", "server_restarted"],
  "server_bug",
]);
export const STATUSES = Object.freeze([
  "in_progress",
  "completed",
  "incomplete",
  "failed",
  "cancelled",
  "queued",
  "refused",
]);
export const APIS = Object.freeze(["responses", "chat", "completions", "messages", "compact"]);

/** @type {(json: Json) => Turn} */
export function readTurn(json) {
  const usage = json["usage"] ?? json;
  const ending = json["ending"];
  return {
    id: text(json["id"] ?? json["response_id"]),
    at: date(json["created_at"] ?? json["created"]),
    api: text(json["api"]),
    model: text(json["model"]),
    status: text(json["status"]),
    cause: text(typeof ending === "string" ? ending : ending?.cause),
    detail: text(ending?.detail),
    input: count(usage["input_tokens"]),
    cached: count(usage["cached_tokens"] ?? usage["input_tokens_details"]?.["cached_tokens"]),
    output: count(usage["output_tokens"]),
    seconds: count(json["seconds"] ?? json["duration_s"]),
    tools: Array.isArray(json["tools"]) ? json["tools"].map(text) : [],
  };
}

/** Returns a sign and words for how a turn ended, or that it runs. @type {(turn: Turn) => {sign: string, words: string, kind: string}} */
export function describeEnding(turn) {
  if (turn.cause === "") {
    const runs = turn.status === "in_progress" || turn.status === "queued";
    return { sign: runs ? "▶" : "○", words: runs ? "running" : turn.status.replaceAll("_", " "), kind: "open" };
  }
  const words = turn.cause.replaceAll("_", " ");
  if (FAULTS.has(turn.cause)) return { sign: "■", words, kind: "bad" };
  return CUTS.has(turn.cause) ? { sign: "◐", words, kind: "cut" } : { sign: "●", words, kind: "good" };
}

/** Returns the query of a list for the filters that are set. @type {(filters: Record<string, string>, after: string) => string} */
export function listQuery(filters, after) {
  const fields = Object.entries(filters).filter(([, value]) => value !== "");
  if (after !== "") fields.push(["after", after]);
  return new URLSearchParams([["limit", "50"], ...fields]).toString();
}

/** @type {(seconds: number | null) => string} */
export function formatSeconds(seconds) {
  if (seconds === null) return "–";
  return seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
}

/** @type {(value: unknown) => string} */
function text(value) {
  return value === undefined || value === null ? "" : String(value);
}

/** @type {(value: unknown) => number | null} */
function count(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

/** @type {(value: unknown) => Date | null} */
function date(value) {
  const parsed = typeof value === "number" ? new Date(value * 1000) : new Date(text(value));
  return Number.isNaN(parsed.getTime()) ? null : parsed;
}
