// Frames of `/v1/inspect/live` in the form that the view shows, and what changes from one to the next.
import { count, text } from "./turns.js";

/** @typedef {keyof LiveFrame["sums"]} SeriesName */

/** Frames that the curves show: five minutes. */
export const MAX_POINTS = 300;

/**
 * Returns a frame. Rates are in tokens a second since the frame before; null without one, as all that is not known.
 * @param {Json} json
 * @param {Json | null} before
 */
export function readFrame(json, before) {
  const at = count(json?.["at"]);
  const seconds = (at ?? NaN) - (count(before?.["at"]) ?? NaN);
  /** @type {(total: unknown, older: unknown) => number | null} A smaller total than before is that of another process. */
  const rate = (total, older) => {
    const grown = Math.max(0, (count(total) ?? NaN) - (count(older) ?? NaN)) / seconds;
    return seconds > 0 ? count(grown) : null;
  };
  const olderTurns = new Map(list(before?.["turns"]).map((turn) => [turn["id"], turn["output_tokens"]]));
  const turns = list(json?.["turns"]).map((turn) => ({
    id: text(turn["id"]),
    api: text(turn["api"]),
    model: text(turn["model"]),
    stage: text(turn["stage"]),
    background: turn["background"] === true,
    seconds: count(turn["seconds"]),
    input: count(turn["input_tokens"]),
    cached: count(turn["cached_tokens"]),
    output: count(turn["output_tokens"]),
    rate: rate(turn["output_tokens"], olderTurns.get(turn["id"])),
  }));
  const olderTotals = new Map(list(before?.["engines"]).map((each) => [each["model"], each["generated_tokens"]]));
  const engines = list(json?.["engines"]).map((figures) => ({
    model: text(figures["model"]),
    running: count(figures["running"]),
    waiting: count(figures["waiting"]),
    slots: count(figures["max_num_seqs"]),
    rate: rate(figures["generated_tokens"], olderTotals.get(figures["model"])),
    /** Share of the prompt tokens so far that a cache held. */
    hits: count(figures["prefix_hit_tokens"] / figures["prompt_tokens"]),
    /** Tokens that the prefix cache holds, for turns that run and that have ended. */
    held: count(figures["running_cache_tokens"] + figures["idle_cache_tokens"]),
    figures,
  }));
  const processes = list(json?.["processes"]).map((each) => ({
    pid: text(each["pid"]),
    name: text(each["name"]),
    bytes: count(each["resident_bytes"]),
  }));
  const sums = {
    rate: sum(engines.map((engine) => engine.rate)),
    running: sum(engines.map((engine) => engine.running)),
    waiting: sum(engines.map((engine) => engine.waiting)),
    bytes: sum(processes.map((each) => each.bytes)),
  };
  return { at, turns, others: count(json?.["turns_of_others"]), engines, processes, sums };
}

/**
 * Returns the sums of the latest frames, with those of one more.
 * @param {Record<SeriesName, number>[]} series
 * @param {Record<SeriesName, number>} next
 */
export function extendSeries(series, next) {
  return [...series.slice(1 - MAX_POINTS), next];
}

/** @type {(bytes: number | null) => string} */
export function formatBytes(bytes) {
  if (bytes === null) return "–";
  return bytes < 1e9 ? `${Math.round(bytes / 1e6)} MB` : `${(bytes / 1e9).toFixed(1)} GB`;
}

/** @type {(value: number | null) => string} */
export function formatRate(value) {
  return value === null ? "–" : value.toFixed(value < 10 ? 1 : 0);
}

/** @type {(values: (number | null)[]) => number} */
function sum(values) {
  return values.reduce((/** @type {number} */ total, value) => total + (value ?? 0), 0);
}

/** @type {(value: unknown) => Json[]} */
function list(value) {
  return Array.isArray(value) ? value.filter((each) => typeof each === "object" && each !== null) : [];
}
