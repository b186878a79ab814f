// The tokens that a turn generated, by the details of its steps, and how likely each was.

/**
 * Returns the tokens with log-probabilities: those of the steps' details, or else those that events carry. A turn that
 * collects none has none here.
 * @type {(lines: Json[], events: Json[]) => OutputToken[]}
 */
export function listTokens(lines, events) {
  /** @type {OutputToken[]} */
  const tokens = [];
  for (let n = 0; n < lines.length; n++) {
    const scored = lines[n]?.["detail"]?.["logprobs"];
    if (!Array.isArray(scored)) continue;
    for (const each of scored) {
      const top = Array.isArray(each?.["top"]) ? each["top"].map(readAlternative) : [];
      tokens.push({ ...readAlternative([each?.["id"], each?.["text"], each?.["logprob"]]), top, event: n });
    }
  }
  return tokens.length > 0 ? tokens : listEventTokens(lines, events);
}

/**
 * Events carry log-probabilities without ids, and of messages only: other texts stand between them, each as one token
 * without a probability.
 * @type {(lines: Json[], events: Json[]) => OutputToken[]}
 */
function listEventTokens(lines, events) {
  /** @type {OutputToken[]} */
  const tokens = [];
  let known = false;
  for (let n = 0; n < lines.length; n++) {
    const delta = events[n]?.["delta"];
    if (typeof delta !== "string") continue;
    const scored = events[n]?.["logprobs"];
    const all = lines[n]?.["detail"]?.["tokens"];
    if (Array.isArray(scored) && scored.length > 0) {
      known = true;
      const ids = Array.isArray(all) && all.length === scored.length ? all : [];
      for (const [i, each] of scored.entries()) {
        const top = Array.isArray(each?.["top_logprobs"]) ? each["top_logprobs"].map(readEventToken) : [];
        tokens.push({ ...readEventToken(each), id: ids[i] ?? null, top, event: n });
      }
    } else if (delta !== "") {
      const id = Array.isArray(all) && all.length === 1 ? all[0] : null;
      tokens.push({ id, text: delta, logprob: null, top: [], event: n });
    }
  }
  return known ? tokens : [];
}

/** @type {(value: Json | null) => Alternative} */
function readEventToken(value) {
  return readAlternative([null, value?.["token"], value?.["logprob"]]);
}

/** Tells whether an alternative is the token that was generated. @type {(token: OutputToken, each: Alternative) => boolean} */
export function isTaken(token, each) {
  return each.id === null ? each.text === token.text : each.id === token.id;
}

/** @type {(value: unknown) => Alternative} */
function readAlternative(value) {
  const [id = null, text, logprob] = Array.isArray(value) ? value : [];
  const known = typeof logprob === "number" && Number.isFinite(logprob);
  return { id, text: typeof text === "string" ? text : "", logprob: known ? logprob : null };
}

/** Least probability of each shade but the last, and what it is called. @type {readonly [number, string][]} */
export const SHADES = Object.freeze([
  [0.9, "90 % or more"],
  [0.5, "50 to 90 %"],
  [0.1, "10 to 50 %"],
  [0.01, "1 to 10 %"],
  [0, "below 1 %"],
]);

/** Returns the shade of a log-probability, 0 for the most likely tokens; -1 if it is not known. @type {(logprob: number | null) => number} */
export function shadeOf(logprob) {
  if (logprob === null) return -1;
  return SHADES.findIndex(([least]) => Math.exp(logprob) >= least);
}

/** @type {(logprob: number | null) => string} */
export function formatProbability(logprob) {
  if (logprob === null) return "–";
  const percent = 100 * Math.exp(logprob);
  return `${percent < 0.01 ? "< 0.01" : percent.toFixed(percent < 1 ? 2 : 1)} %`;
}

/** Returns −log p. @type {(logprob: number | null) => string} */
export function formatSurprise(logprob) {
  return logprob === null ? "–" : Math.abs(logprob).toFixed(3);
}

/** @typedef {{event: number, text: string, ids: unknown[]}} TextRow Text of an event, with the token ids of its step. */

/** Returns the events that have generated text or tokens. @type {(lines: Json[], events: Json[]) => TextRow[]} */
export function listTexts(lines, events) {
  /** @type {TextRow[]} */
  const rows = [];
  for (let n = 0; n < lines.length; n++) {
    const ids = lines[n]?.["detail"]?.["tokens"];
    const delta = events[n]?.["delta"];
    const row = { event: n, text: typeof delta === "string" ? delta : "", ids: Array.isArray(ids) ? ids : [] };
    if (row.text !== "" || row.ids.length > 0) rows.push(row);
  }
  return rows;
}

/** Returns the place of the first token or row at an event or after it; the last one if there is none. @type {(rows: {event: number}[], event: number) => number} */
export function findEvent(rows, event) {
  let low = 0;
  let high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (/** @type {{event: number}} */ (rows[middle]).event < event) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, Math.min(rows.length - 1, low));
}
