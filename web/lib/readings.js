// What each API would have sent for a turn, aligned by the last event that it had read then.
import { describeRow } from "./event-rows.js";

export const READING_APIS = Object.freeze(["responses", "chat", "messages", "completions"]);

/** Adds a line to a reading. A line without a number belongs to the last event. @type {(reading: Map<number, Frame[]>, line: Json) => void} */
export function addFrame(reading, line) {
  const n = Number.isInteger(line["n"]) ? line["n"] : ([...reading.keys()].at(-1) ?? -1);
  const frame = { name: typeof line["name"] === "string" ? line["name"] : "", data: line["data"] };
  const frames = reading.get(n);
  if (frames === undefined) reading.set(n, [frame]);
  else frames.push(frame);
}

/** Returns the numbers of the events after which one of the APIs sends something. @type {(readings: Reading[]) => number[]} */
export function alignReadings(readings) {
  return [...new Set(readings.flatMap((reading) => [...reading.keys()]))].sort((a, b) => a - b);
}

/** Returns the place of a number in a sorted list, or of the one before it. @type {(numbers: number[], n: number) => number} */
export function findNumber(numbers, n) {
  let low = 0;
  let high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (/** @type {number} */ (numbers[middle]) <= n) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 1);
}

const MAX_LINE = 200;

/** Returns what frames say, in one line. @type {(frames: Frame[]) => string} */
export function describeFrames(frames) {
  let line = "";
  for (const [i, frame] of frames.entries()) {
    line += `${i > 0 ? " · " : ""}${describeFrame(frame)}`;
    if (line.length > MAX_LINE) break;
  }
  return line;
}

/** @type {(frame: Frame) => string} */
function describeFrame({ name, data }) {
  if (typeof data !== "object" || data === null) return String(data);
  const json = /** @type {Json} */ (data);
  if (Array.isArray(json["choices"])) return describeChunk(json);
  if (String(json["type"]).startsWith("response.")) {
    const row = describeRow([json], { first: 0, last: 0 });
    return [row.name, row.place, row.text].filter(Boolean).join(" ");
  }
  const part = json["delta"] === undefined ? json["content_block"] : dropType(json["delta"]);
  return `${name || String(json["type"] ?? "")}${part === undefined ? "" : ` ${clipJson(part)}`}`;
}

/** The type of a delta follows from its field. @type {(delta: unknown) => unknown} */
function dropType(delta) {
  if (typeof delta !== "object" || delta === null) return delta;
  const { type: _, ...rest } = /** @type {Json} */ (delta);
  return rest;
}

/** Describes a chunk of a chat or a text completion: the fields that differ from one to the next. @type {(json: Json) => string} */
function describeChunk(json) {
  /** @type {string[]} */
  const words = json["choices"].map((/** @type {Json | null} */ choice) =>
    [
      clipJson(choice?.["delta"] ?? choice?.["text"] ?? choice),
      typeof choice?.["finish_reason"] === "string" ? `finish_reason ${choice["finish_reason"]}` : "",
    ]
      .filter(Boolean)
      .join(" "),
  );
  if (typeof json["usage"] === "object" && json["usage"] !== null) words.push(`usage ${clipJson(json["usage"])}`);
  return words.join(" ");
}

/** @type {(value: unknown) => string} */
function clipJson(value) {
  return (JSON.stringify(value) ?? "").slice(0, MAX_LINE);
}
