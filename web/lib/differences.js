// What two texts or lists differ in. A comparison that takes too long gives up: the page must never stand still.
import { diffArrays } from "../vendor/jsdiff/diff/array.js";

/** @typedef {{kind: "same" | "added" | "removed", text: string}} Difference */

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
