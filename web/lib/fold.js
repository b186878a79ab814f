// The response as of any event. A text as of an event is a prefix of the final text, so each delta keeps only the end of
// its part of it. All other events are folded again for each question; of those there are few.
import { readChange } from "./event-paths.js";

/** Returns how many of the ascending numbers are at most `limit`. @type {(numbers: number[], limit: number) => number} */
export function countUpTo(numbers, limit) {
  let low = 0;
  let high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (/** @type {number} */ (numbers[middle]) <= limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

export class EventFold {
  constructor() {
    /** @type {Json[]} */
    this.events = [];
    /** Numbers of the events that are no deltas and change the response. @type {number[]} */
    this.structural = [];
    /** What these events do. @type {Change[]} */
    this.changes = [];
    /** Texts that may still grow, by the index of their item and by their path. @type {Map<Step, Map<string, GrowingText>>} */
    this.open = new Map();
    /** @type {GrowingText[]} */
    this.texts = [];
    /** What is wrong with the log. @type {{event: number, message: string}[]} */
    this.damage = [];
    this.nextSequence = 0;
  }

  /** Adds the next event. @param {Json} event */
  append(event) {
    const n = this.events.length;
    this.events.push(event);
    const sequence = event["sequence_number"];
    if (sequence !== this.nextSequence) {
      this.damage.push({
        event: n,
        message: `sequence_number ${JSON.stringify(sequence)} follows ${this.nextSequence - 1}`,
      });
    }
    this.nextSequence = (Number.isSafeInteger(sequence) ? /** @type {number} */ (sequence) : this.nextSequence) + 1;
    try {
      this.#take(n, readChange(event));
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      this.damage.push({ event: n, message: error.message });
    }
  }

  /** Returns what event `n` does; nothing, if it names no place in a response. @param {number} n @returns {Change} */
  changeOf(n) {
    const damaged = this.damage.some((entry) => entry.event === n && !entry.message.startsWith("sequence_number"));
    const event = this.events[n];
    return event === undefined || damaged ? { kind: "none" } : readChange(event);
  }

  /** @param {number} n @param {Change} change */
  #take(n, change) {
    if (change.kind === "append") this.#grow(n, change);
    else if (change.kind !== "none") {
      this.structural.push(n);
      this.changes.push(change);
      this.#seal(n, change);
    }
  }

  /** @param {number} n @param {Change & {kind: "append"}} change */
  #grow(n, change) {
    const texts = this.open.get(/** @type {Step} */ (change.path[1])) ?? new Map();
    this.open.set(/** @type {Step} */ (change.path[1]), texts);
    const key = JSON.stringify(change.path);
    const text = texts.get(key) ?? startText(change.path);
    if (!texts.has(key)) {
      texts.set(key, text);
      this.texts.push(text);
    }
    text.events.push(n);
    text.ends.push((text.ends.at(-1) ?? 0) + change.text.length);
    text.pieces.push(change.text);
    for (const entry of change.logprobs) text.logprobs.push(entry);
    text.logprobEnds.push(text.logprobs.length);
  }

  /** Ends the texts that an event sets as a whole. @param {number} n @param {Change} change */
  #seal(n, change) {
    if (change.kind === "response") {
      for (const texts of change.terminal ? this.open.values() : [])
        for (const text of texts.values()) text.sealedAt = n;
      if (change.terminal) this.open.clear();
    } else if ("path" in change) {
      const texts = this.open.get(/** @type {Step} */ (change.path[1]));
      for (const [key, text] of texts ?? []) {
        if (!change.path.every((step, i) => text.path[i] === step)) continue;
        text.sealedAt = n;
        texts?.delete(key);
      }
    }
  }

  /**
   * Returns the response after event `n`. It shares its parts with the events, so it must not be changed.
   * @param {number} n
   * @returns {Json | null}
   */
  asOf(n) {
    /** Objects and lists that this call made: it may change them. @type {Set<unknown>} */
    const own = new Set();
    /** @type {unknown} */
    let response = null;
    const count = countUpTo(this.structural, n);
    for (let i = 0; i < count; i++) {
      const change = /** @type {Change} */ (this.changes[i]);
      if (change.kind === "response") {
        const next = asObject(this.events[/** @type {number} */ (this.structural[i])]?.["response"]);
        const keepsOutput = response !== null && !change.terminal;
        response = keepsOutput ? setAt(next, ["output"], asObject(response)["output"], own) : next;
      } else if (change.kind === "set") response = setAt(response, change.path, change.value, own);
      else if (change.kind === "text") {
        response = setAt(response, change.path, change.text, own);
        if (Array.isArray(change.logprobs)) response = setLogprobs(response, change.path, change.logprobs, own);
      }
    }
    for (const text of this.texts) {
      const deltas = text.sealedAt > n ? countUpTo(text.events, n) : 0;
      if (deltas > 0) response = addText(response, text, deltas, own);
    }
    return response === null ? null : asObject(response);
  }
}

/** @type {(path: Step[]) => GrowingText} */
function startText(path) {
  return { path, events: [], ends: [], pieces: [], text: "", logprobs: [], logprobEnds: [], sealedAt: Infinity };
}

/** @type {(response: unknown, text: GrowingText, deltas: number, own: Set<unknown>) => unknown} */
function addText(response, text, deltas, own) {
  if (text.text.length !== text.ends.at(-1)) text.text = text.pieces.join("");
  const changed = setAt(response, text.path, text.text.slice(0, text.ends[deltas - 1]), own);
  const scored = text.logprobEnds[deltas - 1] ?? 0;
  return scored > 0 ? setLogprobs(changed, text.path, text.logprobs.slice(0, scored), own) : changed;
}

/** @type {(response: unknown, path: Step[], logprobs: unknown[], own: Set<unknown>) => unknown} */
function setLogprobs(response, path, logprobs, own) {
  return setAt(response, [...path.slice(0, -1), "logprobs"], logprobs, own);
}

/** @type {(value: unknown) => Json} */
function asObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? /** @type {Json} */ (value) : {};
}

/**
 * Returns a value with another one at a path. Objects and lists on the way are copied unless they are in `own`.
 * @param {unknown} target
 * @param {Step[]} path
 * @param {unknown} value
 * @param {Set<unknown>} own
 * @param {number} [depth]
 * @returns {unknown}
 */
function setAt(target, path, value, own, depth = 0) {
  const step = path[depth];
  if (step === undefined) return value;
  if (typeof step === "number") {
    const list = own.has(target) ? /** @type {unknown[]} */ (target) : Array.isArray(target) ? target.slice() : [];
    while (list.length < step) list.push(null);
    list[step] = setAt(list[step], path, value, own, depth + 1);
    own.add(list);
    return list;
  }
  const object = own.has(target) ? asObject(target) : { ...asObject(target) };
  object[step] = setAt(object[step], path, value, own, depth + 1);
  own.add(object);
  return object;
}
