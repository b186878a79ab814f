// What two texts, lists or turns differ in. A comparison that takes too long gives up: the page must never stand still.
import { diffArrays } from "../vendor/jsdiff/diff/array.js";
import { buildRows } from "./event-rows.js";

export const LIMITS = Object.freeze({ timeout: 200, maxEditLength: 20_000 });
/** Longer texts are compared by lines. In UTF-16 units. */
const MAX_WORDS_LENGTH = 200_000;
const WORDS = /[\p{L}\p{M}\p{N}_]+|\s+|[^\p{L}\p{M}\p{N}_\s]/gu;
const LINES = /[^\n]*\n|[^\n]+/g;

/**
 * Returns the words that two texts share and do not share, or null if the comparison takes too long.
 * @param {string} before
 * @param {string} after
 */
export function diffTexts(before, after) {
  return diffPieces(before, after, before.length + after.length > MAX_WORDS_LENGTH ? LINES : WORDS);
}

/**
 * Does the same for values as JSON, line by line. Keys are compared in the order of their names.
 * @param {unknown} before
 * @param {unknown} after
 */
export function diffJson(before, after) {
  return diffPieces(formatJson(before), formatJson(after), LINES);
}

/** @type {(before: string, after: string, pieces: RegExp) => Difference[] | null} */
function diffPieces(before, after, pieces) {
  const changes = diffLists(before.match(pieces) ?? [], after.match(pieces) ?? []);
  return changes === null ? null : changes.map(({ kind, values }) => ({ kind, text: values.join("") }));
}

/**
 * Does the same for lists, such as those of token ids.
 * @template T
 * @param {T[]} before
 * @param {T[]} after
 * @returns {{kind: Difference["kind"], values: T[]}[] | null}
 */
export function diffLists(before, after) {
  const changes = diffArrays(before, after, LIMITS);
  return changes === undefined ? null : changes.map((change) => ({ kind: kindOf(change), values: change.value }));
}

/** @type {(change: {added?: boolean, removed?: boolean}) => Difference["kind"]} */
function kindOf(change) {
  if (change.added) return "added";
  return change.removed ? "removed" : "same";
}

/** @type {(value: unknown) => string} */
function formatJson(value) {
  return `${JSON.stringify(sortKeys(value, 0), null, 2)}\n`;
}

/** Depth below which keys keep their order: values may be nested deeper than functions can call themselves. */
const MAX_DEPTH = 500;

/** @type {(value: unknown, depth: number) => unknown} */
function sortKeys(value, depth) {
  if (typeof value !== "object" || value === null || depth > MAX_DEPTH) return value;
  if (Array.isArray(value)) return value.map((inner) => sortKeys(inner, depth + 1));
  const pairs = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(pairs.map(([name, inner]) => [name, sortKeys(inner, depth + 1)]));
}

/** @typedef {{id: unknown, text: string}} Token */

/** Fields that differ between turns that did the same: names, times, and the sizes of pieces of text. */
const CHANCE = new Set([
  ...["id", "item_id", "call_id", "approval_request_id", "sequence_number", "obfuscation", "encrypted_content"],
  ...["logprobs", "created_at", "completed_at", "delta"],
]);

/**
 * Returns the numbers of the first events that differ, null for a log that has ended there; null if none differs. Texts
 * are compared as wholes, however they were cut into deltas; of a response as a whole, its status only.
 * @param {Json[]} before
 * @param {Json[]} after
 * @returns {[number | null, number | null] | null}
 */
export function findParting(before, after) {
  const [rows, others] = [listTexts(before), listTexts(after)];
  for (let i = 0; i < Math.max(rows.length, others.length); i++) {
    const [row, other] = [rows[i], others[i]];
    if (row?.rest !== other?.rest) return [row?.first ?? null, other?.first ?? null];
    if (row === undefined || other === undefined || row.text === other.text) continue;
    const same = countCommon(row.text, other.text);
    return [findPiece(before, row, same), findPiece(after, other, same)];
  }
  return null;
}

/** @typedef {ReturnType<typeof listTexts>[number]} TextRow */

/** @param {Json[]} events */
function listTexts(events) {
  return buildRows(events, { merge: true, itemsOnly: false, search: "" }).map(({ first, last }) => ({
    first,
    last,
    text: events
      .slice(first, last + 1)
      .map(deltaOf)
      .join(""),
    rest: describeRest(events[first] ?? {}),
  }));
}

/** @type {(event: Json) => string} */
function deltaOf(event) {
  return typeof event["delta"] === "string" ? event["delta"] : "";
}

/** Returns what an event says besides its delta, without what chance decides. @type {(event: Json) => string} */
function describeRest(event) {
  const { response, ...rest } = event;
  const { status, error, incomplete_details } = response ?? {};
  return JSON.stringify([rest, status, error, incomplete_details], (key, value) => (CHANCE.has(key) ? null : value));
}

/** Returns the number of the event that holds a place of a row's text, or that follows it. @type {(events: Json[], row: TextRow, place: number) => number | null} */
function findPiece(events, { first, last }, place) {
  let n = first;
  for (let end = 0; n <= last; n++) {
    end += deltaOf(events[n] ?? {}).length;
    if (end > place) break;
  }
  return n < events.length ? n : null;
}

/** Returns how many values two lists, or texts, begin with alike. @type {(before: ArrayLike<unknown>, after: ArrayLike<unknown>) => number} */
export function countCommon(before, after) {
  let n = 0;
  while (n < before.length && n < after.length && before[n] === after[n]) n++;
  return n;
}

/** Tokens that are shown of each prompt whose differences are too many. */
const SHOWN_TOKENS = 200;

/**
 * Returns how many tokens two prompts begin with alike, and the differences of the rest as texts.
 * @param {Token[]} before
 * @param {Token[]} after
 */
export function comparePrompts(before, after) {
  const [ids, others] = [before, after].map((tokens) => tokens.map((token) => token.id));
  const common = countCommon(ids ?? [], others ?? []);
  const [left, right] = [before.slice(common), after.slice(common)];
  const join = (/** @type {Token[]} */ tokens) => tokens.map(({ id, text }) => text || `⟨${id}⟩`).join("");
  let [n, m] = [0, 0];
  /** @type {Difference[] | undefined} */
  const changes = diffLists((ids ?? []).slice(common), (others ?? []).slice(common))?.map(
    ({ kind, values: { length } }) => {
      const tokens = kind === "added" ? right.slice(m, m + length) : left.slice(n, n + length);
      if (kind !== "added") n += length;
      if (kind !== "removed") m += length;
      return { kind, text: join(tokens) };
    },
  );
  return {
    common,
    changes: changes ?? [
      { kind: /** @type {const} */ ("removed"), text: join(left.slice(0, SHOWN_TOKENS)) },
      { kind: /** @type {const} */ ("added"), text: join(right.slice(0, SHOWN_TOKENS)) },
    ],
  };
}

/** Characters of an equal text that are shown before and after what differs, about. */
const NEAR = 160;

/**
 * Returns the begin and the end of an equal text, and how many characters stand between them. The first text of all has
 * no begin, and the last one no end.
 * @param {string} text
 * @param {boolean} isFirst
 * @param {boolean} isLast
 */
export function clipEqual(text, isFirst, isLast) {
  const begin = isFirst ? 0 : findLineEnd(text, NEAR);
  const end = isLast ? text.length : findLineEnd(text, text.length - 2 * NEAR);
  if (end - begin < NEAR) return { begin: text, left: 0, end: "" };
  return { begin: text.slice(0, begin), left: end - begin, end: text.slice(end) };
}

/** Returns the end of the line at a place; the place itself, if it is far. @type {(text: string, place: number) => number} */
function findLineEnd(text, place) {
  const end = text.indexOf("\n", place) + 1;
  return end === 0 || end > place + NEAR ? place : end;
}
