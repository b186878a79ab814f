// Rows of the timeline: an event each, or the deltas of one text that follow one another.
import { TEXT_STREAMS } from "./event-paths.js";

const ITEM_EVENTS = new Set(["response.output_item.added", "response.output_item.done"]);

/**
 * Returns the rows of a log.
 * @param {Json[]} events
 * @param {RowOptions} options
 * @returns {Row[]}
 */
export function buildRows(events, { merge, itemsOnly, search }) {
  /** @type {Row[]} */
  const rows = [];
  const wanted = search.toLowerCase();
  /** @type {Json | null} */
  let before = null;
  for (let n = 0; n < events.length; n++) {
    const event = /** @type {Json} */ (events[n]);
    if (itemsOnly && isDetail(event)) continue;
    if (wanted !== "" && !matches(event, wanted)) continue;
    const row = rows.at(-1);
    if (merge && row?.last === n - 1 && before !== null && isSameText(event, before)) row.last = n;
    else rows.push({ first: n, last: n });
    before = event;
  }
  return rows;
}

/** Tells whether an event is neither about an item as a whole nor about the response. @type {(event: Json) => boolean} */
function isDetail(event) {
  return "output_index" in event && !ITEM_EVENTS.has(String(event["type"]));
}

const DELTAS = new Set([...TEXT_STREAMS.keys()].map((stream) => `${stream}.delta`));
const INDICES = ["output_index", "content_index", "summary_index", "command_index"];

/** Tells whether two events are deltas of one text. @type {(event: Json, before: Json) => boolean} */
function isSameText(event, before) {
  if (event["type"] !== before["type"] || !DELTAS.has(event["type"])) return false;
  return INDICES.every((name) => event[name] === before[name]);
}

/** @type {(event: Json, wanted: string) => boolean} */
function matches(event, wanted) {
  return JSON.stringify(event).toLowerCase().includes(wanted);
}

/** Returns the row of an event, or the one before it if it has none; -1 without rows. @type {(rows: Row[], n: number) => number} */
export function findRow(rows, n) {
  let low = 0;
  let high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (/** @type {Row} */ (rows[middle]).first <= n) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 1);
}

/** Longest text of a row, in UTF-16 units. */
const MAX_ROW_TEXT = 160;

/**
 * Returns the name, the place and the text of a row.
 * @param {Json[]} events
 * @param {Row} row
 */
export function describeRow(events, row) {
  const event = events[row.first] ?? {};
  let text = eventText(event);
  for (let n = row.first + 1; n <= row.last && text.length < MAX_ROW_TEXT; n++) text += eventText(events[n] ?? {});
  const index = event["content_index"] ?? event["summary_index"] ?? event["command_index"];
  const place =
    event["output_index"] === undefined ? "" : `[${event["output_index"]}${index === undefined ? "" : `.${index}`}]`;
  return { name: String(event["type"]).replace(/^response\./, ""), place, text };
}

/** @type {(event: Json) => string} */
function eventText(event) {
  if (typeof event["delta"] === "string") return event["delta"];
  const item = event["item"];
  if (typeof item === "object" && item !== null)
    return [item["type"], item["name"], item["status"]].filter(Boolean).join(" ");
  if (typeof event["response"] === "object" && event["response"] !== null)
    return String(event["response"]["status"] ?? "");
  const whole = event["text"] ?? event["arguments"] ?? event["input"] ?? event["message"] ?? "";
  return typeof whole === "string" ? whole : "";
}
